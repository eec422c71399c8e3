// The encoder by phases: panels of tokens share weights in the L2 cache, and go from attention to attention alone; only
// attention looks at the whole of an image. A few images at a time pass through all blocks, so that what stands between
// two phases is still in the last cache when it is read.
#include "encoder.h"

#include <algorithm>

#include "parallel.h"

namespace secateur {

namespace {

constexpr Index most_images = 4;    // that pass together: 4 · 13 groups are whole panels, and a part of a last cache

Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

/// Groups of tokens in panels that are level, and enough of them for all threads.
struct Places {
    Index groups, panels, small, larger;    // the first `larger` panels have one group more than `small`

    Places(Index groups, int threads) : groups(groups) {
        panels = divide_up(divide_up(groups, panel_groups), threads) * threads;
        panels = std::min(panels, groups);
        small = groups / panels;
        larger = groups % panels;
    }
    Index groups_of(Index p) const { return small + (p < larger); }
    Index first_group(Index p) const { return p * small + std::min(p, larger); }
    Index panel_of(Index g) const {
        const Index edge = larger * (small + 1);
        return g < edge ? g / (small + 1) : larger + (g - edge) / small;
    }
    /// The first token of group g in a buffer of `rows` features.
    float* at(float* buffer, Index rows, Index g) const {
        const Index p = panel_of(g);
        return buffer + p * rows * panel + (g - first_group(p)) * group;
    }
};

/// How large the buffers for a few images are, in numbers.
struct Sizes {
    Index groups, features, wide, mixed, tokens, scratch;    // of an image; rows of panels; of all panels; of a thread

    Sizes(const Encoder& encoder, Index images, int threads)
        : groups(divide_up(encoder.tokens(), group)), features(encoder.patches.view().padded_rows()), wide(features),
          mixed(encoder.heads * encoder.head_size), tokens(Places(images * groups, threads).panels * panel) {
        Index hidden = encoder.patches.columns;
        for (const EncoderBlock& block : encoder.blocks) {
            wide = std::max(wide, block.qkv.view().padded_rows());
            hidden = std::max(hidden, features + block.up.view().padded_rows());
        }
        scratch = hidden * panel;
    }
    Index bytes() const { return sizeof(float) * tokens * (features + wide + mixed); }
};

/// A few images on their way through the blocks, in memory of Sizes::bytes.
class Chunk {
public:
    Chunk(const Encoder& encoder, const SparseVariant& variant, Index most, int threads, std::byte* memory)
        : encoder(encoder), variant(variant), threads(threads), sizes(encoder, most, threads),
          places(most * sizes.groups, threads), for_panels(sizeof(float) * sizes.scratch, threads) {
        state = reinterpret_cast<float*>(memory);
        qkv = state + sizes.tokens * sizes.features;
        mixed = qkv + sizes.tokens * sizes.wide;
    }

    void run(const float* images, Index count, float* outputs, Index kept) {
        places = Places(count * sizes.groups, threads);
        stream = state;
        per_image = sizes.groups;
        const std::size_t blocks = encoder.blocks.size();
        on_panels([&](Index p, float* memory) {
            embed(images, p, memory);
            if (blocks) query(encoder.blocks[0], p, memory);
        });
        for (std::size_t b = 0; b + 1 < blocks; ++b) {
            attend(count, places);
            on_panels([&](Index p, float* memory) {
                finish(encoder.blocks[b], p, memory);
                query(encoder.blocks[b + 1], p, memory);
            });
        }
        if (blocks) finish_kept(count, divide_up(kept, group));
        unpack(count, outputs, kept);
    }

private:
    const Encoder& encoder;
    const SparseVariant& variant;
    int threads;
    Sizes sizes;
    Places places;
    Scratch for_panels;
    float *state, *qkv, *mixed;    // panels: the residual stream; queries, keys and values; the heads' outputs
    float* stream = nullptr;     // the residual stream now: in the last block of the tokens that are kept alone
    Index per_image = 0;         // groups of each image in it

    template <class Work>
    void on_panels(const Work& work) {
        for_each_block(places.panels, for_panels,
                       [&](Index p, std::byte* memory) { work(p, reinterpret_cast<float*>(memory)); });
    }

    float* stream_of(Index p) { return stream + p * panel * sizes.features; }

    void embed(const float* images, Index p, float* pixels) {
        const Index tokens = encoder.tokens(), padded = sizes.groups * group;
        float* out = stream_of(p);
        std::fill(pixels, pixels + encoder.patches.columns * panel, 0.0f);
        std::fill(out, out + sizes.features * panel, 0.0f);
        for (Index t = 0; t < places.groups_of(p) * group; ++t) {
            const Index number = places.first_group(p) * group + t, token = number % padded;
            if (token >= tokens) continue;
            for (Index f = 0; f < encoder.features(); ++f) out[f * panel + t] = encoder.start[f * tokens + token];
            if (token >= encoder.prefix) gather(images, number / padded, token - encoder.prefix, pixels + t);
        }
        variant.product(encoder.patches.view(), pixels, out, places.groups_of(p), true, Activation::none);
    }

    void gather(const float* images, Index image, Index patch, float* to) const {
        const Encoder& e = encoder;
        const Index across = e.width / e.patch_width, y = patch / across * e.patch_height;
        const float* from = images + image * e.channels * e.height * e.width + patch % across * e.patch_width;
        for (Index c = 0; c < e.channels; ++c)
            for (Index i = 0; i < e.patch_height; ++i)
                for (Index j = 0; j < e.patch_width; ++j, to += panel) *to = from[(c * e.height + y + i) * e.width + j];
    }

    void query(const EncoderBlock& block, Index p, float* memory) {
        const Index groups = places.groups_of(p);
        variant.normalise(stream_of(p), memory, encoder.features(), groups, block.epsilon_attention);
        variant.product(block.qkv.view(), memory, qkv + p * panel * sizes.wide, groups, false, Activation::none);
    }

    /// The heads' outputs for the first groups of every image, as many as `to` has, at their places there.
    void attend(Index count, const Places& to) {
        const Index wanted = to.groups / count, pieces = divide_up(wanted, 3);    // an image's queries
        const Index bytes = variant.attention_scratch(encoder.tokens());
        for_each_block(count * encoder.heads * pieces, threads, bytes + 2 * sizeof(float*) * sizes.groups,
                       [&](Index task, std::byte* memory) {
            const Index piece = task % pieces, h = task / pieces % encoder.heads, image = task / pieces / encoder.heads;
            auto** groups = reinterpret_cast<float**>(memory + bytes);
            float** outputs = groups + sizes.groups;
            const Index row = h * encoder.head_size * panel, keys = sizes.mixed * panel;
            for (Index g = 0; g < sizes.groups; ++g)
                groups[g] = places.at(qkv, sizes.wide, image * sizes.groups + g) + row;
            for (Index g = 0; g < wanted; ++g) outputs[g] = to.at(mixed, sizes.mixed, image * wanted + g) + row;
            const Head head{encoder.tokens(), encoder.head_size, groups, keys, 2 * keys, outputs};
            variant.attend(head, piece * wanted / pieces, (piece + 1) * wanted / pieces, memory);
        });
    }

    /// The last block, for the first `wanted` groups of every image: nobody asks for the other tokens.
    void finish_kept(Index count, Index wanted) {
        const Places kept(count * wanted, threads);
        attend(count, kept);
        for (Index g = 0; g < kept.groups; ++g) {    // the queries are done with: there is room for the stream
            const float* from = places.at(stream, sizes.features, g / wanted * sizes.groups + g % wanted);
            float* to = kept.at(qkv, sizes.features, g);
            for (Index f = 0; f < sizes.features; ++f) std::copy_n(from + f * panel, group, to + f * panel);
        }
        stream = qkv;
        places = kept;
        per_image = wanted;
        on_panels([&](Index p, float* memory) { finish(encoder.blocks.back(), p, memory); });
    }

    void finish(const EncoderBlock& block, Index p, float* memory) {
        const Index groups = places.groups_of(p);
        float *x = stream_of(p), *hidden = memory + sizes.features * panel;
        variant.product(block.projection.view(), mixed + p * panel * sizes.mixed, x, groups, true, Activation::none);
        variant.normalise(x, memory, encoder.features(), groups, block.epsilon_mlp);
        variant.product(block.up.view(), memory, hidden, groups, false, encoder.activation);
        variant.product(block.down.view(), hidden, x, groups, true, Activation::none);
    }

    void unpack(Index count, float* outputs, Index kept) {
        for_each_block(count * kept, threads, 0, [&](Index i, std::byte*) {
            const Index token = i % kept;
            const float* from = places.at(stream, sizes.features, i / kept * per_image + token / group) + token % group;
            for (Index f = 0; f < encoder.features(); ++f) outputs[i * encoder.features() + f] = from[f * panel];
        });
    }
};

std::string check_shape(const PackedArrays& packed, Index rows, Index columns) {
    const std::string wrong = check_packed(packed);
    if (!wrong.empty()) return wrong;
    return packed.rows == rows && packed.columns == columns ? "" : "a matrix has another shape than the encoder";
}

}    // namespace

std::string check_encoder(const Encoder& e) {
    for (const Index size : {e.channels, e.height, e.width, e.patch_height, e.patch_width, e.heads, e.head_size})
        if (size < 1 || size > 65536) return "a size is out of range";
    if (e.prefix < 0 || e.prefix > 65536 || e.head_size % 8) return "the prefix or the size of a head is out of range";
    if (e.height % e.patch_height || e.width % e.patch_width) return "patches do not fill the image";
    const Index features = e.features(), mixed = e.heads * e.head_size;
    std::string wrong = check_shape(e.patches, features, e.channels * e.patch_height * e.patch_width);
    if (wrong.empty() && Index(e.start.size()) != features * e.tokens()) wrong = "the start does not fit the tokens";
    for (const EncoderBlock& block : e.blocks) {
        if (wrong.empty()) wrong = check_shape(block.qkv, 3 * mixed, features);
        if (wrong.empty()) wrong = check_shape(block.projection, features, mixed);
        if (wrong.empty()) wrong = check_shape(block.up, block.up.rows, features);
        if (wrong.empty()) wrong = check_shape(block.down, features, block.up.rows);
    }
    return wrong;
}

void encode(const Encoder& encoder, const SparseVariant& variant, const float* images, Index count, float* outputs,
            Index kept, int threads) {
    const Index pixels = encoder.channels * encoder.height * encoder.width, numbers = kept * encoder.features();
    if (count < 1) return;
    const auto run = [&](Chunk& chunk, Index first, Index end) {
        chunk.run(images + first * pixels, end - first, outputs + first * numbers, kept);
    };
    if (count < 2 * threads && count % threads) {    // too few for a thread each: all threads share every image
        const Index most = std::min(count, most_images);
        const Scratch memory(Sizes(encoder, most, threads).bytes(), 1);
        Chunk chunk(encoder, variant, most, threads, memory.of(0));
        for (Index first = 0; first < count; first += most) run(chunk, first, std::min(first + most, count));
        return;
    }
    // each thread takes images through the whole encoder by itself, and never waits for another
    const Index chunks = divide_up(divide_up(count, most_images), threads) * threads, most = divide_up(count, chunks);
    for_each_block(divide_up(count, most), threads, Sizes(encoder, most, 1).bytes(), [&](Index i, std::byte* memory) {
        Chunk chunk(encoder, variant, most, 1, memory);
        run(chunk, i * most, std::min((i + 1) * most, count));
    });
}

}    // namespace secateur

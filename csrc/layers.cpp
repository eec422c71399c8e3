#include "layers.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "parallel.h"

namespace secateur {

namespace {

Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

/// Calls work(first column, columns, cursor, first, last) block by block; it returns the next cursor.
template <class Work>
void for_blocks(const PackedMatrix& w, const Work& work) {
    Cursor at{w.tiles, w.values, w.offsets};
    for (Index begin = 0; begin < w.columns; begin += w.width) {
        const Index columns = std::min(w.width, w.columns - begin);
        at = work(begin, columns, at, begin == 0, begin + columns == w.columns);
    }
}

/// The images of a convolution with zeros around them, the columns of every row sorted by their remainder to the stride:
/// neighbours in the output are neighbours in memory.
class Padded {
public:
    Padded(const Convolution& shape, const Images& images, int threads) : shape(shape), images(images) {
        phase = divide_up(images.width + 2 * shape.padding_x, shape.stride_x) + run;
        row = phase * shape.stride_x;
        height = images.height + 2 * shape.padding_y;
        const bool as_they_are = shape.kernel_height * shape.kernel_width * shape.stride_x * shape.stride_y == 1 &&
                                 shape.padding_x + shape.padding_y == 0 && images.width % run == 0;
        if (as_they_are) {
            phase = row = images.width;
            from = images.pixels;
            return;
        }
        numbers.reset(new float[images.count * shape.channels * height * row]);
        from = numbers.get();
        for_each_block(images.count * shape.channels, threads, 0, [&](Index plane, std::byte*) { copy(plane); });
    }

    const float* plane(Index image, Index channel) const { return from + (image * shape.channels + channel) * height * row; }

    /// From the pixel of an output at the kernel's corner to the one under column k of the weight.
    std::int64_t offset(Index k) const {
        const Index area = shape.kernel_height * shape.kernel_width, c = k / area;
        const Index y = k % area / shape.kernel_width * shape.dilation_y, x = k % shape.kernel_width * shape.dilation_x;
        return (c * height + y) * row + x % shape.stride_x * phase + x / shape.stride_x;
    }

    Index row, height;

private:
    const Convolution& shape;
    const Images& images;
    Index phase;
    std::unique_ptr<float[]> numbers;
    const float* from;

    void copy(Index plane) {
        const float* pixels = images.pixels + plane * images.height * images.width;
        float* area = numbers.get() + plane * height * row;
        std::fill(area, area + height * row, 0.0f);
        for (Index y = 0; y < images.height; ++y, pixels += images.width) {
            float* to = area + (y + shape.padding_y) * row;
            if (shape.stride_x == 1) {
                std::memcpy(to + shape.padding_x, pixels, sizeof(float) * images.width);
                continue;
            }
            for (Index x = 0; x < images.width; ++x) {
                const Index at = x + shape.padding_x;
                to[at % shape.stride_x * phase + at / shape.stride_x] = pixels[x];
            }
        }
    }
};

/// Up to eight neighbouring pixels of one row of an output.
struct Run {
    Index image, y, x, length;
};

class Runs {
public:
    Runs(Index count, Index height, Index width) : height(height), width(width), across(divide_up(width, run)) {
        total = count * height * across;
    }
    Run at(Index number) const {
        const Index x = number % across * run, y = number / across % height;
        return {number / across / height, y, x, std::min(run, width - x)};
    }
    Index total;

private:
    Index height, width, across;
};

}    // namespace

Index Convolution::out_height(Index height) const {
    return (height + 2 * padding_y - dilation_y * (kernel_height - 1) - 1) / stride_y + 1;
}

Index Convolution::out_width(Index width) const {
    return (width + 2 * padding_x - dilation_x * (kernel_width - 1) - 1) / stride_x + 1;
}

void run_linear(const PackedArrays& weight, const SparseVariant& variant, const float* inputs, Index tokens, float* outputs,
                Activation f, int threads) {
    const PackedMatrix w = weight.view();
    const Index numbers = (w.width + w.padded_rows()) * panel;
    for_each_block(divide_up(tokens, panel), threads, sizeof(float) * numbers, [&](Index tile, std::byte* scratch) {
        float *x = reinterpret_cast<float*>(scratch), *y = x + w.width * panel;
        const Index first = tile * panel, count = std::min(panel, tokens - first), groups = divide_up(count, group);
        std::fill(x, x + w.width * panel, 0.0f);
        for_blocks(w, [&](Index begin, Index columns, Cursor at, bool is_first, bool is_last) {
            variant.transpose(inputs + first * w.columns + begin, w.columns, x, panel, count, columns);
            return variant.block_product(w, at, x, y, groups, is_first, is_last, false, f);
        });
        variant.transpose(y, panel, outputs + first * w.rows, w.rows, w.rows, count);
    });
}

void run_convolution(const PackedArrays& weight, const Convolution& shape, const SparseVariant& variant, const Images& images,
                     const float* added, float* outputs, Activation f, int threads) {
    const PackedMatrix w = weight.view();
    const Padded padded(shape, images, threads);
    const Index height = shape.out_height(images.height), width = shape.out_width(images.width);
    const Runs runs(images.count, height, width);
    std::vector<std::int64_t> offsets(w.columns);
    for (Index k = 0; k < w.columns; ++k) offsets[k] = padded.offset(k);

    constexpr Index most = panel / run;
    const Index numbers = (w.width + w.padded_rows()) * panel;
    for_each_block(divide_up(runs.total, most), threads, sizeof(float) * numbers, [&](Index tile, std::byte* scratch) {
        float *x = reinterpret_cast<float*>(scratch), *y = x + w.width * panel;
        const Index count = std::min(most, runs.total - tile * most);
        const float* from[most];
        Index to[most], length[most];
        for (Index s = 0; s < most; ++s) {
            const Run r = runs.at(tile * most + std::min(s, count - 1));
            from[s] = padded.plane(r.image, 0) + r.y * shape.stride_y * padded.row + r.x;
            to[s] = (r.image * w.rows * height + r.y) * width + r.x;
            length[s] = s < count ? r.length : 0;
        }
        if (added)
            for (Index r = 0; r < w.rows; ++r)
                for (Index s = 0; s < most; ++s)
                    for (Index i = 0; i < length[s]; ++i) y[r * panel + s * run + i] = added[to[s] + r * height * width + i];
        for_blocks(w, [&](Index begin, Index columns, Cursor at, bool first, bool last) {
            variant.gather_runs(from, offsets.data() + begin, columns, x);
            return variant.block_product(w, at, x, y, divide_up(count * run, group), first, last, added != nullptr, f);
        });
        for (Index r = 0; r < w.rows; ++r)
            for (Index s = 0; s < most; ++s)
                for (Index i = 0; i < length[s]; ++i) outputs[to[s] + r * height * width + i] = y[r * panel + s * run + i];
    });
}

}    // namespace secateur

#include "layers.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "parallel.h"

namespace secateur {

namespace {

Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

/// NaN wins, as in torch.
inline float larger(float a, float b) { return a > b || a != a ? a : b; }

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

    /// Whether some column of the kernel meets numbers whose place leaves this remainder to the stride.
    static bool meets(Index remainder, Index kernel, Index dilation, Index stride) {
        for (Index k = 0; k < kernel; ++k)
            if (k * dilation % stride == remainder) return true;
        return false;
    }

    void copy(Index plane) {
        float* area = numbers.get() + plane * height * row;
        for (Index y = 0; y < height; ++y, area += row) {
            std::fill(area, area + row, 0.0f);
            const Index from_y = y - shape.padding_y;
            if (from_y < 0 || from_y >= images.height) continue;
            if (!meets(y % shape.stride_y, shape.kernel_height, shape.dilation_y, shape.stride_y)) continue;
            const float* pixels = images.pixels + (plane * images.height + from_y) * images.width;
            for (Index r = 0; r < shape.stride_x; ++r)
                if (meets(r, shape.kernel_width, shape.dilation_x, shape.stride_x)) copy_row(pixels, r, area + r * phase);
        }
    }

    /// The pixels of a row whose padded place leaves this remainder to the stride.
    void copy_row(const float* pixels, Index remainder, float* to) const {
        const Index first = (shape.padding_x - remainder + shape.stride_x - 1) / shape.stride_x;
        Index at = std::max<Index>(first, 0), x = at * shape.stride_x + remainder - shape.padding_x;
        for (; x < images.width; ++at, x += shape.stride_x) to[at] = pixels[x];
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

/// Copies of sizes the compiler knows; those of four and more numbers may overlap.
inline void copy_run(const float* from, float* to, Index length) {
    if (length == run) {
        std::memcpy(to, from, sizeof(float) * run);
    } else if (length >= run / 2) {
        std::memcpy(to, from, sizeof(float) * run / 2);
        std::memcpy(to + length - run / 2, from + length - run / 2, sizeof(float) * run / 2);
    } else {
        for (Index i = 0; i < length; ++i) to[i] = from[i];
    }
}

/// The runs of one tile: where they are in the padded images, and in the outputs of the first row.
struct Tile {
    static constexpr Index most = panel / run;
    const float* from[most];
    Index to[most], length[most], count;
    bool together = true;    // one piece of the output

    Tile(const Runs& runs, Index number, const Padded& padded, const Convolution& shape, Index rows, Index height, Index width)
        : count(std::min(most, runs.total - number * most)) {
        for (Index s = 0; s < most; ++s) {
            const Run r = runs.at(number * most + std::min(s, count - 1));
            from[s] = padded.plane(r.image, 0) + r.y * shape.stride_y * padded.row + r.x;
            to[s] = (r.image * rows * height + r.y) * width + r.x;
            length[s] = s < count ? r.length : 0;
            together = together && length[s] == run && to[s] == to[0] + s * run;
        }
    }

    void copy_from(const float* pixels, float* row) const {
        if (together) {
            std::memcpy(row, pixels + to[0], sizeof(float) * panel);
        } else {
            for (Index s = 0; s < most; ++s) copy_run(pixels + to[s], row + s * run, length[s]);
        }
    }

    void copy_to(float* pixels, const float* row) const {
        if (together) {
            std::memcpy(pixels + to[0], row, sizeof(float) * panel);
        } else {
            for (Index s = 0; s < most; ++s) copy_run(row + s * run, pixels + to[s], length[s]);
        }
    }
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

    const Index numbers = (w.width + w.padded_rows()) * panel, area = height * width;
    for_each_block(divide_up(runs.total, Tile::most), threads, sizeof(float) * numbers, [&](Index number, std::byte* scratch) {
        float *x = reinterpret_cast<float*>(scratch), *y = x + w.width * panel;
        const Tile tile(runs, number, padded, shape, w.rows, height, width);
        for (Index r = 0; added && r < w.rows; ++r) tile.copy_from(added + r * area, y + r * panel);
        for_blocks(w, [&](Index begin, Index columns, Cursor at, bool first, bool last) {
            variant.gather_runs(tile.from, offsets.data() + begin, columns, x);
            return variant.block_product(w, at, x, y, divide_up(tile.count * run, group), first, last, added != nullptr, f);
        });
        for (Index r = 0; r < w.rows; ++r) tile.copy_to(outputs + r * area, y + r * panel);
    });
}

void run_max_pool(const Images& images, const Pool& pool, float* outputs, int threads) {
    const Index height = pool.out_length(images.height), width = pool.out_length(images.width);
    const Index padded = images.width + 2 * pool.padding;
    constexpr float least = -std::numeric_limits<float>::infinity();
    for_each_block(images.count, threads, sizeof(float) * padded, [&](Index plane, std::byte* scratch) {
        const float* pixels = images.pixels + plane * images.height * images.width;
        float *column = reinterpret_cast<float*>(scratch), *to = outputs + plane * height * width;
        for (Index y = 0; y < height; ++y, to += width) {
            std::fill(column, column + padded, least);
            const Index top = y * pool.stride - pool.padding;
            for (Index i = std::max<Index>(top, 0); i < std::min(top + pool.kernel, images.height); ++i)
                for (Index x = 0; x < images.width; ++x)
                    column[pool.padding + x] = larger(pixels[i * images.width + x], column[pool.padding + x]);
            for (Index x = 0; x < width; ++x) to[x] = column[x * pool.stride];
            for (Index j = 1; j < pool.kernel; ++j)
                for (Index x = 0; x < width; ++x) to[x] = larger(column[x * pool.stride + j], to[x]);
        }
    });
}

}    // namespace secateur

// The contract of the sparse kernels: packed matrices, panels of tokens, and one table of kernels per instruction set.
//
// A panel holds up to 64 tokens in groups of 16, one feature after the other: number t of feature f is at [f · 64 + t].
// Kernels compute whole groups; what stands beyond the last token is finite and of no meaning. A packed matrix is a
// struct of plain arrays, made once by `pack` and checked by `check_packed` before any kernel reads it; kernels trust it.
// Outputs never alias inputs, except where a kernel says so. All numbers are float32.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace secateur {

constexpr Index group = 16;                   // tokens that are computed together
constexpr Index panel_groups = 4;
constexpr Index panel = panel_groups * group;    // tokens
constexpr Index run = 8;                      // pixels of a row of an image that are copied together
constexpr Index quad = 4;                     // entries that are read together

/// A sparse matrix (rows, columns), cut into blocks of `width` columns whose part of a panel stays in the L1 cache.
/// Within a block, rows are sorted by their number of entries and taken two at a time: a tile. A tile first has the
/// columns both rows share, `shared` quads of one set of offsets and two of values; then as many single entries of each
/// row, in pairs of quads, the last of them filled up and cut off at `singles`.
struct PackedMatrix {
    Index rows, columns, width;    // width · panel < 2¹⁶, the reach of an offset
    Index tiles_per_block;         // ⌈rows / 2⌉
    const std::int32_t* tiles;     // (blocks, tiles_per_block, 4): row, row, shared, singles
    const float* values;           // (value quads, 4), in the order they are read
    const std::uint16_t* offsets;  // (offset quads, 4): where a column of the block starts in the panel, in numbers
    const float* bias;             // (2 · tiles_per_block): with an odd number of rows the last tile has one of its own

    __attribute__((always_inline)) Index blocks() const { return (columns + width - 1) / width; }
    __attribute__((always_inline)) Index padded_rows() const { return 2 * tiles_per_block; }
};

/// Where a product goes on reading: kernels take one block of columns after the other.
struct Cursor {
    const std::int32_t* tile;
    const float* values;
    const std::uint16_t* offsets;
};

enum class Activation : std::int32_t { none, relu, gelu, silu };

/// One head of one image: pointers to the queries, keys and values of its first feature, by group of tokens.
struct Head {
    Index tokens, size;            // size: features, a multiple of 8
    float* const* groups;          // (⌈tokens / 16⌉): the first query feature; further features are `panel` apart
    Index keys, values;            // how far keys and values are from the queries, in numbers
    float* const* outputs;         // (⌈tokens / 16⌉)
};

/// One instruction set: the same source, compiled with other flags.
struct SparseVariant {
    /// y = f(Wx + b), or f(Wx + b + y) where `add`, for the groups of a panel; y has room for padded_rows.
    void (*product)(const PackedMatrix& w, const float* x, float* y, Index groups, bool add, Activation f);
    /// The same for one block of columns, whose features alone `x` holds; bias comes first, the activation last.
    Cursor (*block_product)(const PackedMatrix& w, Cursor at, const float* x, float* y, Index groups, bool first,
                            bool last, bool add, Activation f);
    /// y = (x - mean) / √(variance + ε) of every token.
    void (*normalise)(const float* x, float* y, Index features, Index groups, float epsilon);
    /// Softmax of queries · keys times values, for the queries of groups [first, last); queries are scaled by log₂ e.
    /// Scratch: `attention_scratch` bytes.
    void (*attend)(const Head& head, Index first, Index last, std::byte* scratch);
    Index (*attention_scratch)(Index tokens);
    /// to (columns, rows) = from (rows, columns)ᵀ.
    void (*transpose)(const float* from, Index from_stride, float* to, Index to_stride, Index rows, Index columns);
    /// A block of a panel: number k of run s starts at runs[s] + offsets[k]; 8 runs.
    void (*gather_runs)(const float* const* runs, const std::int64_t* offsets, Index columns, float* to);
    /// For measurements: so many rounds of multiply-adds, or of loads from the L1 cache; how many numbers, or vectors.
    double (*probe_multiply_adds)(Index rounds);
    double (*probe_loads)(Index rounds);
    Index lanes;                   // numbers in a vector
};

}    // namespace secateur

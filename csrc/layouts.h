// From tensors to panels and back: tokens are transposed, pixels copied eight at a time.
#pragma once
#include "sparse.h"
#include "vectors.h"

namespace secateur::SECATEUR_VARIANT {

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

/// `lanes` vectors, transposed by halving rounds: row i and row i + lanes / 2 are dealt out one number after the other.
SECATEUR_INLINE void transpose_square(Vector* rows) {
    Integers low, high;
    for (Index i = 0; i < lanes; ++i) {
        low[i] = i / 2 + i % 2 * lanes;
        high[i] = low[i] + lanes / 2;
    }
    for (Index round = 1; round < lanes; round *= 2) {
        Vector dealt[lanes];
#pragma GCC unroll 8
        for (Index i = 0; i < lanes / 2; ++i) {
            dealt[2 * i] = __builtin_shuffle(rows[i], rows[i + lanes / 2], low);
            dealt[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + lanes / 2], high);
        }
#pragma GCC unroll 16
        for (Index i = 0; i < lanes; ++i) rows[i] = dealt[i];
    }
}

/// to (columns, rows) = from (rows, columns)ᵀ.
inline void transpose(const float* from, Index from_stride, float* to, Index to_stride, Index rows, Index columns) {
    const Index whole_rows = rows / lanes * lanes, whole_columns = columns / lanes * lanes;
    for (Index c = 0; c < whole_columns; c += lanes)
        for (Index r = 0; r < whole_rows; r += lanes) {
            Vector block[lanes];
            for (Index i = 0; i < lanes; ++i) block[i] = load(from + (r + i) * from_stride + c);
            transpose_square(block);
            for (Index i = 0; i < lanes; ++i) store(to + (c + i) * to_stride + r, block[i]);
        }
    for (Index r = 0; r < rows; ++r)
        for (Index c = r < whole_rows ? whole_columns : 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

/// A block of a panel from pixels: column k of run s starts at runs[s] + offsets[k].
inline void gather_runs(const float* const* runs, const std::int64_t* offsets, Index columns, float* to) {
    for (Index k = 0; k < columns; ++k, to += panel)
#pragma GCC unroll 8
        for (Index s = 0; s < panel / run; ++s)
            *reinterpret_cast<Eight*>(to + s * run) = *reinterpret_cast<const Eight*>(runs[s] + offsets[k]);
}

}    // namespace secateur::SECATEUR_VARIANT

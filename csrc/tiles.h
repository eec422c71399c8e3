// The register tile every kernel is made of: TILE_ROWS rows times a few vectors of AᵀB.
//
// A and B are row-major with the summed index first, so both are read along rows: B in vectors, A one broadcast
// number at a time. Callers pad their matrices, so tiles may run past the last row and column, and never test for it.
// Compiled once per instruction set; no standard template is used here, because the linker would keep one copy of it
// for all variants, and could choose one with instructions this machine lacks.
#pragma once
#include "kernels.h"

namespace secateur::SECATEUR_VARIANT {

#define SECATEUR_INLINE inline __attribute__((always_inline))

constexpr int tile_rows = SECATEUR_TILE_ROWS;
constexpr int tile_vectors = SECATEUR_TILE_VECTORS;

template <class T>
struct Simd {
    static constexpr int lanes = SECATEUR_VECTOR_BYTES / sizeof(T);
    typedef T Vector __attribute__((vector_size(SECATEUR_VECTOR_BYTES)));
    typedef T Unaligned __attribute__((vector_size(SECATEUR_VECTOR_BYTES), aligned(alignof(T)), may_alias));

    static SECATEUR_INLINE Vector load(const T* from) { return *reinterpret_cast<const Unaligned*>(from); }
    static SECATEUR_INLINE void store(T* to, Vector v) { *reinterpret_cast<Unaligned*>(to) = v; }
};

SECATEUR_INLINE Index smaller(Index a, Index b) { return a < b ? a : b; }
SECATEUR_INLINE Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }

/// A stored lower triangle: `step` numbers a row, or 0 where the rows are packed.
template <class T>
struct Triangle {
    T* data;
    Index step;

    SECATEUR_INLINE T* row(Index i) const { return data + (step ? i * step : i * (i + 1) / 2); }
};

/// The lower triangle of one tile_rows × tile_rows block of L, with zeros past row `rows`.
template <class T>
struct Corner {
    T lower[tile_rows][tile_rows];
    T reciprocal[tile_rows];    // 1 / L_pp

    void load(const T* l, Index stride, Index rows) {
        for (Index p = 0; p < tile_rows; ++p) {
            for (Index c = 0; c < tile_rows; ++c) lower[p][c] = p < rows && c <= p ? l[p * stride + c] : T(0);
            reciprocal[p] = p < rows ? T(1) / lower[p][p] : T(0);
        }
    }

    void store(T* l, Index stride, Index rows) const {
        for (Index p = 0; p < rows; ++p)
            for (Index c = 0; c <= p; ++c) l[p * stride + c] = lower[p][c];
    }
};

template <class T, int vectors>
struct Tile {
    using S = Simd<T>;
    typename S::Vector at[tile_rows][vectors];

    /// AᵀB over `depth` rows of A and B.
    SECATEUR_INLINE void product(Index depth, const T* a, Index a_stride, const T* b, Index b_stride) {
#pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) at[r][v] = typename S::Vector{};
        for (Index p = 0; p < depth; ++p, a += a_stride, b += b_stride) {
            typename S::Vector row[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) row[v] = S::load(b + v * S::lanes);
#pragma GCC unroll 16
            for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) at[r][v] += a[r] * row[v];
        }
    }

    /// C - tile.
    SECATEUR_INLINE void subtract_from(const T* c, Index stride) {
#pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) at[r][v] = S::load(c + r * stride + v * S::lanes) - at[r][v];
    }

    /// X with LᵀX = tile, for the corner L.
    SECATEUR_INLINE void solve(const Corner<T>& corner) {
#pragma GCC unroll 16
        for (int p = tile_rows - 1; p >= 0; --p) {
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) at[p][v] *= corner.reciprocal[p];
#pragma GCC unroll 16
            for (int r = 0; r < p; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) at[r][v] -= corner.lower[p][r] * at[p][v];
        }
    }

    SECATEUR_INLINE void store(T* c, Index stride) const {
#pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) S::store(c + r * stride + v * S::lanes, at[r][v]);
    }
};

template <int n>
struct Width {
    static constexpr int value = n;
};

/// Calls visit(column, Width<vectors>) for tiles that cover the columns [begin, end): wide ones, then one that fits.
template <class T, int vectors = tile_vectors, class Visit>
SECATEUR_INLINE void for_tiles(Index begin, Index end, const Visit& visit) {
    constexpr Index lanes = Simd<T>::lanes;
    for (; end - begin > (vectors - 1) * lanes; begin += vectors * lanes) visit(begin, Width<vectors>{});
    if constexpr (vectors > 1) for_tiles<T, vectors - 1>(begin, end, visit);
}

}    // namespace secateur::SECATEUR_VARIANT

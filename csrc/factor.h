// Cholesky from the last row up, A = LᵀL with L lower triangular, and what follows from it, in either precision.
//
// This order, unlike A = LLᵀ, only ever combines rows with rows, so every step is the AᵀB tile of tiles.h.
// Each step costs n³/3 operations. Matrices have `stride` numbers a row, and rows padded to whole tiles.
#pragma once
#include "tiles.h"

namespace secateur::SECATEUR_VARIANT {

/// The corner's own factor, in place. False when a pivot is not above `limit`, or not finite.
template <class T>
inline bool factor_corner(T* a, Index stride, Index rows, T limit) {
    for (Index p = rows - 1; p >= 0; --p) {
        T* pivot_row = a + p * stride;
        const T pivot = pivot_row[p];
        if (!(pivot > limit) || !__builtin_isfinite(pivot)) return false;
        const T root = static_cast<T>(__builtin_sqrt(pivot));
        for (Index c = 0; c < p; ++c) pivot_row[c] /= root;
        pivot_row[p] = root;
        for (Index r = 0; r < p; ++r)
            for (Index c = 0; c <= r; ++c) a[r * stride + c] -= pivot_row[r] * pivot_row[c];
    }
    return true;
}

/// L of A = LᵀL over the lower triangle of A. False when a pivot fails; padding rows must be zero.
template <class T>
inline bool factor(T* a, Index n, Index stride, T limit) {
    for (Index top = round_up(n, tile_rows) - tile_rows; top >= 0; top -= tile_rows) {
        const Index rows = smaller(tile_rows, n - top), depth = n - top - rows;
        const T* below = a + (top + rows) * stride;
        T* panel = a + top * stride;
        for_tiles<T>(top, top + tile_rows, [&](Index j, auto width) {
            Tile<T, decltype(width)::value> tile;
            tile.product(depth, below + top, stride, below + j, stride);
            tile.subtract_from(panel + j, stride);
            tile.store(panel + j, stride);
        });
        if (!factor_corner(panel + top, stride, rows, limit)) return false;
        Corner<T> corner;
        corner.load(panel + top, stride, rows);
        for_tiles<T>(0, top, [&](Index j, auto width) {
            Tile<T, decltype(width)::value> tile;
            tile.product(depth, below + top, stride, below + j, stride);
            tile.subtract_from(panel + j, stride);
            tile.solve(corner);
            tile.store(panel + j, stride);
        });
        if (Simd<T>::lanes > tile_rows) corner.store(panel + top, stride, rows);    // the last tile ran over it
    }
    return true;
}

/// N = L⁻ᵀ, upper triangular with zeros below, so that A⁻¹ = NᵀN.
template <class T>
inline void invert_transposed(const T* l, Index n, Index stride, T* out) {
    for (Index top = round_up(n, tile_rows) - tile_rows; top >= 0; top -= tile_rows) {
        const Index rows = smaller(tile_rows, n - top), bottom = top + rows;
        for (Index r = top; r < top + tile_rows; ++r)
            for (Index c = 0; c < stride; ++c) out[r * stride + c] = c == r ? T(1) : T(0);
        Corner<T> corner;
        corner.load(l + top * stride + top, stride, rows);
        for_tiles<T>(top, n, [&](Index j, auto width) {
            constexpr int vectors = decltype(width)::value;
            const Index depth = smaller(n, j + vectors * Simd<T>::lanes) - bottom;    // N is zero further down
            Tile<T, vectors> tile;
            tile.product(depth, l + bottom * stride + top, stride, out + bottom * stride + j, stride);
            tile.subtract_from(out + top * stride + j, stride);    // the identity until here
            tile.solve(corner);
            tile.store(out + top * stride + j, stride);
        });
    }
}

/// H = NᵀN, lower triangle, for the N of invert_transposed.
template <class T>
inline void square_upper(const T* upper, Index n, Index stride, T* h) {
    for (Index top = 0; top < n; top += tile_rows)
        for_tiles<T>(0, smaller(n, top + tile_rows), [&](Index j, auto width) {
            constexpr int vectors = decltype(width)::value;
            const Index depth = smaller(n, smaller(top + tile_rows, j + vectors * Simd<T>::lanes));
            Tile<T, vectors> tile;
            tile.product(depth, upper + top, stride, upper + j, stride);
            tile.store(h + top * stride + j, stride);
        });
}

/// diag(NᵀN).
template <class T>
inline void square_sums(const T* upper, Index n, Index stride, T* sums) {
    for (Index i = 0; i < n; ++i) sums[i] = T(0);
    for (Index p = 0; p < n; ++p) {
        const T* row = upper + p * stride;
#pragma omp simd
        for (Index i = p; i < n; ++i) sums[i] += row[i] * row[i];
    }
}

/// H -= UᵀU, lower triangle, for `depth` rows of U.
template <class T>
inline void downdate(T* h, Index n, Index stride, const T* u, Index depth) {
    for (Index top = 0; top < n; top += tile_rows)
        for_tiles<T>(0, smaller(n, top + tile_rows), [&](Index j, auto width) {
            Tile<T, decltype(width)::value> tile;
            tile.product(depth, u + top, stride, u + j, stride);
            tile.subtract_from(h + top * stride + j, stride);
            tile.store(h + top * stride + j, stride);
        });
}

/// x = A⁻¹x in place: LᵀZ = x, then Lx = z, each along rows of L.
inline void solve_factored(const double* l, Index n, Index stride, double* x) {
    for (Index p = n - 1; p >= 0; --p) {
        const double* row = l + p * stride;
        const double z = x[p] /= row[p];
#pragma omp simd
        for (Index c = 0; c < p; ++c) x[c] -= row[c] * z;
    }
    for (Index p = 0; p < n; ++p) {
        const double* row = l + p * stride;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (Index c = 0; c < p; ++c) sum += row[c] * x[c];
        x[p] = (x[p] - sum) / row[p];
    }
}

/// y = Fx from the lower triangle of F; y has its own memory.
template <class T>
inline void symmetric_product(const Triangle<const T>& fisher, Index size, const double* x, double* y) {
    for (Index i = 0; i < size; ++i) {
        const T* row = fisher.row(i);
        const double xi = x[i];
        double sum = row[i] * xi;
#pragma omp simd reduction(+ : sum)
        for (Index j = 0; j < i; ++j) {
            sum += row[j] * x[j];
            y[j] += row[j] * xi;
        }
        y[i] = sum;
    }
}

}    // namespace secateur::SECATEUR_VARIANT

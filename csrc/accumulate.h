// F += GᵀG for one block, lower triangle, float32: half the work of a full product.
//
// A batch of samples is packed in panels one tile wide, so that tiles read memory in order and stay in L1 and L2.
#pragma once
#include "tiles.h"

namespace secateur::SECATEUR_VARIANT {

constexpr Index batch_samples = 256;
constexpr Index panel_width = tile_vectors * Simd<float>::lanes;
static_assert(panel_width % tile_rows == 0, "the rows of a tile must lie in one panel");

inline Index accumulate_scratch(Index size) {
    return batch_samples * round_up(size, panel_width) * static_cast<Index>(sizeof(float));
}

/// Asks for the cache lines of `count` numbers ahead of their use; addresses past the end of an array do no harm.
template <bool write>
SECATEUR_INLINE void prefetch(const float* from, Index count) {
    for (Index j = 0; j < count; j += 16) __builtin_prefetch(from + j, write);
}

/// (samples, size) with `stride` numbers a sample → (panels, samples, panel_width), zeros past the end.
inline void pack(const float* gradients, Index samples, Index size, Index stride, float* packed) {
    constexpr Index ahead = 8;    // samples lie far apart, so the hardware cannot foresee the next one
    for (Index p = 0; p < samples; ++p) {
        const float* from = gradients + p * stride;
        if (p + ahead < samples) prefetch<false>(from + ahead * stride, size);
        for (Index panel = 0; panel < size; panel += panel_width) {
            const Index width = smaller(panel_width, size - panel);
            float* to = packed + panel * samples + p * panel_width;
            for (Index j = 0; j < width; ++j) to[j] = from[panel + j];
            for (Index j = width; j < panel_width; ++j) to[j] = 0.0f;
        }
    }
}

/// fisher += tile where the tile's columns, from j, do not pass the diagonal of its rows, from top.
template <int vectors>
SECATEUR_INLINE void add_lower(const Tile<float, vectors>& tile, float* fisher, Index size, Index top, Index j) {
    using S = Simd<float>;
    if (j + vectors * S::lanes <= top + 1 && top + tile_rows <= size) {
#pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
                float* to = fisher + (top + r) * size + j + v * S::lanes;
                S::store(to, S::load(to) + tile.at[r][v]);
            }
        return;
    }
    alignas(64) float edge[tile_rows * vectors * S::lanes];
    tile.store(edge, vectors * S::lanes);
    for (Index r = top; r < smaller(top + tile_rows, size); ++r)
        for (Index c = j; c < smaller(r + 1, j + vectors * S::lanes); ++c)
            fisher[r * size + c] += edge[(r - top) * vectors * S::lanes + c - j];
}

inline void accumulate(const Accumulation& problem, Index block, std::byte* scratch) {
    const Index size = problem.size, stride = problem.blocks * size;
    float* packed = reinterpret_cast<float*>(scratch);
    float* fisher = problem.fisher + block * size * size;
    for (Index first = 0; first < problem.samples; first += batch_samples) {
        const Index samples = smaller(batch_samples, problem.samples - first);
        pack(problem.gradients + first * stride + block * size, samples, size, stride, packed);
        for (Index top = 0; top < size; top += tile_rows) {
            for (Index r = top + tile_rows; r < smaller(top + 2 * tile_rows, size); ++r)
                prefetch<true>(fisher + r * size, r + 1);
            const float* rows = packed + top / panel_width * samples * panel_width + top % panel_width;
            for_tiles<float>(0, smaller(size, top + tile_rows), [&](Index j, auto width) {
                Tile<float, decltype(width)::value> tile;
                const float* columns = packed + j / panel_width * samples * panel_width + j % panel_width;
                tile.product(samples, rows, panel_width, columns, panel_width);
                add_lower(tile, fisher, size, top, j);
            });
        }
    }
}

}    // namespace secateur::SECATEUR_VARIANT

// F += GᵀG for one block, packed lower triangle, float32 sums: half the work of a full product.
//
// A batch of samples is packed in panels one tile wide, so that tiles read memory in order and stay in L1 and L2.
// bfloat16 gradients become float32 on the way, except where the processor multiplies pairs of them (AVX512-BF16): there
// a unit of a panel is a pair of samples.
#pragma once
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "tiles.h"

namespace secateur::SECATEUR_VARIANT {

constexpr Index batch_units = 256;
constexpr Index panel_width = tile_vectors * Simd<float>::lanes;
static_assert(panel_width % tile_rows == 0, "the rows of a tile must lie in one panel");

inline Index accumulate_scratch(Index size) {
    return batch_units * round_up(size, panel_width) * static_cast<Index>(sizeof(float));
}

/// Asks for the cache lines of `count` numbers ahead of their use; addresses past the end of an array do no harm.
template <bool write, class G>
SECATEUR_INLINE void prefetch(const G* from, Index count) {
    constexpr Index per_line = 64 / static_cast<Index>(sizeof(G));
    for (Index j = 0; j < count; j += per_line) __builtin_prefetch(from + j, write);
}

SECATEUR_INLINE float widened(float value) { return value; }

SECATEUR_INLINE float widened(Bf16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
    return __builtin_bit_cast(float, bits);
}

/// What a panel holds for gradients of type G: `samples` of them make one unit.
template <class G>
struct Unit {
    using Number = float;
    static constexpr Index samples = 1;

    static SECATEUR_INLINE Number made(const G* from, const G*, Index j) { return widened(from[j]); }

    template <int vectors>
    static SECATEUR_INLINE void product(Tile<float, vectors>& tile, Index units, const float* rows, const float* columns) {
        tile.product(units, rows, panel_width, columns, panel_width);
    }
};

#ifdef __AVX512BF16__
template <>
struct Unit<Bf16> {
    using Number = std::uint32_t;
    static constexpr Index samples = 2;

    static SECATEUR_INLINE Number made(const Bf16* first, const Bf16* second, Index j) {
        return static_cast<Number>(first[j].bits) | static_cast<Number>(second[j].bits) << 16;
    }

    template <int vectors>
    static SECATEUR_INLINE void product(Tile<float, vectors>& tile, Index units, const Number* rows,
                                        const Number* columns) {
#pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) tile.at[r][v] = _mm512_setzero_ps();
        for (Index p = 0; p < units; ++p, rows += panel_width, columns += panel_width) {
            __m512bh pairs[vectors];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) pairs[v] = (__m512bh)_mm512_loadu_si512(columns + 16 * v);
#pragma GCC unroll 16
            for (int r = 0; r < tile_rows; ++r) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(rows[r]));
#pragma GCC unroll 4
                for (int v = 0; v < vectors; ++v) tile.at[r][v] = _mm512_dpbf16_ps(tile.at[r][v], pairs[v], pair);
            }
        }
    }
};
#endif

/// (samples, width) with `stride` numbers a sample → (panels, units, panel_width), zeros past the end.
template <class G>
inline void pack(const G* gradients, Index samples, Index width, Index size, Index stride,
                 typename Unit<G>::Number* packed) {
    constexpr Index ahead = 8;    // samples lie far apart, so the hardware cannot foresee the next one
    static const G zeros[panel_width] = {};
    const Index units = (samples + Unit<G>::samples - 1) / Unit<G>::samples;
    for (Index p = 0; p < units; ++p) {
        const G* first = gradients + p * Unit<G>::samples * stride;
        const bool is_whole = (p + 1) * Unit<G>::samples <= samples;
        if ((p + ahead + 1) * Unit<G>::samples <= samples)
            for (Index s = 0; s < Unit<G>::samples; ++s)
                prefetch<false>(first + (ahead * Unit<G>::samples + s) * stride, width);
        for (Index panel = 0; panel < size; panel += panel_width) {
            const Index filled = smaller(panel_width, width - panel);
            const G* from = first + panel;
            const G* second = is_whole ? from + stride * (Unit<G>::samples - 1) : zeros;
            auto* to = packed + panel * units + p * panel_width;
            for (Index j = 0; j < filled; ++j) to[j] = Unit<G>::made(from, second, j);
            for (Index j = filled > 0 ? filled : 0; j < panel_width; ++j) to[j] = 0;
        }
    }
}

/// A vector with zeros after its first `count` numbers.
SECATEUR_INLINE Simd<float>::Vector first_of(Simd<float>::Vector values, Index count) {
    typedef int Numbers __attribute__((vector_size(SECATEUR_VECTOR_BYTES)));
    Numbers position;
#pragma GCC unroll 16
    for (int i = 0; i < Simd<float>::lanes; ++i) position[i] = i;
    return (Simd<float>::Vector)((Numbers)values & (position < static_cast<int>(count)));
}

/// fisher += tile where the tile's columns, from j, do not pass the diagonal of its rows, from top.
template <int vectors>
SECATEUR_INLINE void add_lower(const Tile<float, vectors>& tile, const Triangle<float>& fisher, Index size, Index top,
                               Index j) {
    using S = Simd<float>;
    const bool is_inside = top + tile_rows + S::lanes <= size;    // what a vector adds past a row's end falls in the next
#pragma GCC unroll 16
    for (Index r = 0; r < tile_rows; ++r) {
        if (top + r >= size) return;
        float* row = fisher.row(top + r);
#pragma GCC unroll 4
        for (Index v = 0; v < vectors; ++v) {
            const Index column = j + v * S::lanes, count = top + r + 1 - column;
            if (count >= S::lanes) {
                S::store(row + column, S::load(row + column) + tile.at[r][v]);
            } else if (count > 0 && is_inside) {
                S::store(row + column, S::load(row + column) + first_of(tile.at[r][v], count));
            } else if (count > 0) {
                alignas(64) float edge[S::lanes];
                S::store(edge, tile.at[r][v]);
                for (Index c = 0; c < count; ++c) row[column + c] += edge[c];
            }
        }
    }
}

template <class G>
void accumulate(const Accumulation<G>& problem, Index block, std::byte* scratch) {
    const Index size = problem.size, stride = problem.weights, start = block * size;
    const Index width = smaller(size, problem.weights - start);
    auto* packed = reinterpret_cast<typename Unit<G>::Number*>(scratch);
    const Triangle<float> fisher{problem.fisher + block * (size * (size + 1) / 2), 0};
    constexpr Index batch = batch_units * Unit<G>::samples;
    for (Index first = 0; first < problem.samples; first += batch) {
        const Index samples = smaller(batch, problem.samples - first);
        const Index units = (samples + Unit<G>::samples - 1) / Unit<G>::samples;
        pack(problem.gradients + first * stride + start, samples, width, size, stride, packed);
        for (Index top = 0; top < width; top += tile_rows) {
            for (Index r = top + tile_rows; r < smaller(top + 2 * tile_rows, size); ++r)
                prefetch<true>(fisher.row(r), r + 1);
            const auto* rows = packed + top / panel_width * units * panel_width + top % panel_width;
            for_tiles<float>(0, smaller(size, top + tile_rows), [&](Index j, auto count) {
                Tile<float, decltype(count)::value> tile;
                const auto* columns = packed + j / panel_width * units * panel_width + j % panel_width;
                Unit<G>::product(tile, units, rows, columns);
                add_lower(tile, fisher, size, top, j);
            });
        }
    }
}

}    // namespace secateur::SECATEUR_VARIANT

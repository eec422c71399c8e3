// One block of a problem, the memory to work on it, and the factor of A with its damping rule.
#pragma once
#include <cstdint>

#include "eliminate.h"

namespace secateur::SECATEUR_VARIANT {

constexpr Index line = 64;    // bytes

/// Numbers in a padded row: room for a tile past the end, and an odd count of cache lines, so that a column of a
/// matrix spreads over all sets of the cache.
inline Index padded(Index size) { return round_up(size + 16, 8) / 8 % 2 ? round_up(size + 16, 8) : round_up(size + 16, 8) + 8; }

/// One thread's memory, carved from its scratch.
struct Workspace {
    Index stride;
    double *a, *b, *terms, *x, *y, *z;
    Index *kept, *source;
    Survivors survivors;
    std::uintptr_t next;

    template <class U>
    U* take(Index count) {
        const std::uintptr_t start = next;
        next += round_up(count * static_cast<Index>(sizeof(U)), line);
        return reinterpret_cast<U*>(start);
    }

    Workspace(Index size, std::uintptr_t scratch) : stride(padded(size)), next(scratch) {
        const Index matrix = round_up(size, 8) * stride;
        a = take<double>(matrix), b = take<double>(matrix), terms = take<double>(group_size * stride);
        x = take<double>(stride), y = take<double>(stride), z = take<double>(stride);
        kept = take<Index>(stride), source = take<Index>(stride);
        survivors = {take<double>(stride), take<double>(stride), take<double>(stride),
                     take<double>(stride), take<double>(stride), take<double>(stride),
                     take<Index>(stride),  take<Index>(stride),  take<Index>(stride)};
    }
};

inline Index solver_scratch(Index size) { return static_cast<Index>(Workspace(size, 0).next); }

/// Pointers to one block of a problem, and which of its entries are kept.
template <class T>
struct Block {
    Index size, n = 0, group, most;
    const T* input;
    Triangle<const T> fisher;
    const bool* keep;
    T* output;
    double* used;
    const Index* kept;

    Block(const Problem<T>& p, Index block, Workspace& w)
        : size(p.size), group(p.group), most(p.most), input(p.input ? p.input + block * size : nullptr), fisher(p.packed ? Triangle<const T>{p.fisher + block * (size * (size + 1) / 2), 0}
                          : Triangle<const T>{p.fisher + block * size * size, size}),
          keep(p.keep + block * size), output(p.output + block * size), used(p.used + block), kept(w.kept) {
        for (Index j = 0; j < size; ++j)
            if (keep[j]) w.kept[n++] = j;
    }

    void fill(T value) const {
        for (Index j = 0; j < size; ++j) output[j] = value;
    }

    /// Writes values of the kept entries, `dropped` elsewhere; all NaN, `used` too, when a value is not finite.
    void write(const double* values, T dropped) const {
        bool finite = true;
        for (Index i = 0; i < n; ++i) finite = finite && __builtin_isfinite(values[i]);
        if (!finite) return spoil();
        fill(dropped);
        for (Index i = 0; i < n; ++i) output[kept[i]] = static_cast<T>(values[i]);
    }

    void spoil() const {
        *used = __builtin_nan("");
        fill(static_cast<T>(*used));
    }
};

/// F_KK + λI, lower triangle, padding rows zero.
template <class T>
inline void gather(const Block<T>& block, double damping, double* a, Index stride) {
    for (Index i = 0; i < block.n; ++i) {
        const T* from = block.fisher.row(block.kept[i]);
        double* to = a + i * stride;
        if (block.n == block.size)
            for (Index j = 0; j <= i; ++j) to[j] = from[j];
        else
            for (Index j = 0; j <= i; ++j) to[j] = from[block.kept[j]];
        to[i] += damping;
    }
    for (Index i = block.n; i < round_up(block.n, tile_rows); ++i)
        for (Index j = 0; j < stride; ++j) a[i * stride + j] = 0.0;
}

/// Leaves L of A = LᵀL in w.a and λ in `used`. Where A does not factor, λ grows until it does; false when it never
/// can, because F_KK is not finite.
template <class T>
inline bool factor_kept(const Block<T>& block, double damping, const Workspace& w) {
    while (__builtin_isfinite(damping)) {
        gather(block, damping, w.a, w.stride);
        double largest = 0.0, mean = 0.0;
        for (Index i = 0; i < block.n; ++i) {
            const double diagonal = w.a[i * w.stride + i];
            largest = diagonal > largest ? diagonal : largest;
            mean += static_cast<double>(block.fisher.row(block.kept[i])[block.kept[i]]) / static_cast<double>(block.n);
        }
        *block.used = damping;
        if (factor(w.a, block.n, w.stride, 1e-13 * largest)) return true;
        if (!__builtin_isfinite(mean)) return false;
        for (Index i = 0; i < block.n; ++i)
            for (Index j = 0; j < i; ++j)
                if (!__builtin_isfinite(block.fisher.row(block.kept[i])[block.kept[j]])) return false;
        damping = 10.0 * damping > 1e-20 ? 10.0 * damping : 1e-20;
        damping = 1e-8 * mean > damping ? 1e-8 * mean : damping;
    }
    return false;
}

}    // namespace secateur::SECATEUR_VARIANT

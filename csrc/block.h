// One block of a problem, the memory to work on it, and the factor of A with its damping rule.
#pragma once
#include <cstdint>

#include "eliminate.h"

namespace secateur::SECATEUR_VARIANT {

constexpr Index line = 64;    // bytes

/// Numbers in a padded row: room for a tile past the end, and an odd count of cache lines, so that a column of a
/// matrix spreads over all sets of the cache.
template <class T>
inline Index padded(Index size) {
    constexpr Index numbers = line / sizeof(T);
    const Index lines = (size + 16 + numbers - 1) / numbers;
    return (lines + 1 - lines % 2) * numbers;
}

/// One thread's memory, carved from its scratch; matrices and what is eliminated in T.
template <class T>
struct Workspace {
    Index stride;
    T *a, *b, *terms;
    double *x, *y, *z;
    Index* kept;
    Survivors<T> survivors;
    std::uintptr_t next;

    template <class U>
    U* take(Index count) {
        const std::uintptr_t start = next;
        next += round_up(count * static_cast<Index>(sizeof(U)), line);
        return reinterpret_cast<U*>(start);
    }

    Workspace(Index size, std::uintptr_t scratch) : stride(padded<T>(size)), next(scratch) {
        kept = take<Index>(size);    // first, and so in one place for every T
        const Index matrix = round_up(size, 8) * stride;
        a = take<T>(matrix), b = take<T>(matrix), terms = take<T>(group_size * stride);
        x = take<double>(stride), y = take<double>(stride), z = take<double>(stride);
        survivors = {take<T>(stride), take<T>(stride), take<T>(stride), take<T>(stride), take<T>(stride),
                     take<T>(stride), take<Index>(stride), take<Index>(stride), take<Index>(stride)};
    }
};

inline Index solver_scratch(Index size) {
    const Index narrow = static_cast<Index>(Workspace<float>(size, 0).next), wide = static_cast<Index>(Workspace<double>(size, 0).next);
    return narrow > wide ? narrow : wide;
}

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

    /// `entries` has room for the positions of all that are kept.
    Block(const Problem<T>& p, Index block, Index* entries)
        : size(p.size), group(p.group), most(p.most), input(p.input ? p.input + block * size : nullptr),
          fisher(p.packed ? Triangle<const T>{p.fisher + block * (size * (size + 1) / 2), 0}
                          : Triangle<const T>{p.fisher + block * size * size, size}),
          keep(p.keep + block * size), output(p.output + block * size), used(p.used + block), kept(entries) {
        for (Index j = 0; j < size; ++j)
            if (keep[j]) entries[n++] = j;
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

/// D (F_KK + λI) D, lower triangle, padding rows zero, where D, the scale, makes its diagonal 1.
template <class T>
inline void gather_scaled(const Block<T>& block, const T* scale, T* a, Index stride) {
    for (Index i = 0; i < block.n; ++i) {
        const T* from = block.fisher.row(block.kept[i]);
        T* to = a + i * stride;
        if (block.n == block.size)
            for (Index j = 0; j < i; ++j) to[j] = scale[i] * from[j] * scale[j];
        else
            for (Index j = 0; j < i; ++j) to[j] = scale[i] * from[block.kept[j]] * scale[j];
        to[i] = T(1);
    }
    for (Index i = block.n; i < round_up(block.n, tile_rows); ++i)
        for (Index j = 0; j < stride; ++j) a[i * stride + j] = T(0);
}

/// Leaves L of A = LᵀL in w.a and λ in `used`. Where A does not factor, λ grows until it does; false when it never
/// can, because F_KK is not finite.
template <class T>
inline bool factor_kept(const Block<T>& block, double damping, const Workspace<double>& w) {
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

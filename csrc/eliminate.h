// CAP's greedy elimination of one block (paper, eq. for the OBS update), n³/3 operations on H = A⁻¹ in cache.
//
// Each removal changes H by a rank-one term H_:q H_q: / H_qq = uuᵀ. Terms wait in groups: until a group is complete
// the column of the next weight is corrected on the fly, and only the diagonal is kept current. Then the dead rows
// leave H and the whole group is subtracted at once, with one pass over H instead of `group_size`.
#pragma once
#include "factor.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace secateur::SECATEUR_VARIANT {

constexpr Index group_size = 32;

/// What one elimination carries, `stride` numbers each; entries past n, and dead ones, have alive = 0, weight = ∞.
template <class T>
struct Survivors {
    T *weight, *diagonal, *floor, *alive, *column;
    T* bar;          // ∞ for what may not leave, because its group has no more to give; else 0
    Index* entry;    // position among the kept entries at the start
    Index* group;    // which of the groups it is in

    Index* room;     // by group: how many may still leave

    void retire(Index j) const {
        weight[j] = static_cast<T>(__builtin_inf());
        diagonal[j] = floor[j] = T(1);
        alive[j] = column[j] = bar[j] = T(0);
        group[j] = -1;
    }

    /// Retires q, and bars its group where q was the last that it could give.
    void leave(Index q, Index n) const {
        const Index own = group[q];
        retire(q);
        if (own < 0 || --room[own] > 0) return;
        for (Index j = 0; j < n; ++j)
            if (group[j] == own) bar[j] = static_cast<T>(__builtin_inf());
    }
};

/// 0, 1, 2, …
template <class T>
SECATEUR_INLINE auto lane_numbers() {
    decltype(typename Simd<T>::Vector{} < typename Simd<T>::Vector{}) numbers = {};
    for (int lane = 0; lane < Simd<T>::lanes; ++lane) numbers[lane] = lane;
    return numbers;
}

/// The cheapest weight seen so far, lane by lane: costs and their indices.
template <class T>
struct Cheapest {
    using S = Simd<T>;
    using Vector = typename S::Vector;
    using Indices = decltype(Vector{} < Vector{});

    Vector cost = Vector{} + static_cast<T>(__builtin_inf());
    Indices index = {};

    /// Costs w² / H_jj of the weights from j on; of equal costs the earlier one stays.
    SECATEUR_INLINE void see(Vector weight, Vector diagonal, Vector bar, Index j) {
        const Vector found = weight * weight / diagonal + bar;
        const Indices less = found < cost;
        cost = less ? found : cost;
        index = less ? Indices{} + static_cast<decltype(index[0] + 0)>(j) : index;
    }

    /// The lowest index of the least cost; where only costs that overflowed are left, the first that may leave; n
    /// where none may.
    SECATEUR_INLINE Index best(const Survivors<T>& s, Index n) const {
        Vector least = cost;
        Indices first = index + lane_numbers<T>();
        halve<S::lanes / 2>(least, first);
        if (least[0] < static_cast<T>(__builtin_inf())) return first[0];
        for (Index j = 0; j < n; ++j)
            if (s.alive[j] != T(0) && s.bar[j] == T(0)) return j;
        return n;
    }

private:
    /// The best of lanes `step` apart, until the first lane has the best of all.
    template <int step>
    static SECATEUR_INLINE void halve(Vector& least, Indices& first) {
        const Indices apart = (lane_numbers<T>() + step) % S::lanes;
        const Vector other = __builtin_shuffle(least, apart);
        const Indices index = __builtin_shuffle(first, apart);
        const Indices better = (other < least) | ((other == least) & (index < first));
        least = better ? other : least;
        first = better ? index : first;
        if constexpr (step > 1) halve<step / 2>(least, first);
    }
};

template <class T>
inline Index cheapest(const Survivors<T>& s, Index n) {
    using S = Simd<T>;
    Cheapest<T> found;
    for (Index j = 0; j < n; j += S::lanes) found.see(S::load(s.weight + j), S::load(s.diagonal + j), S::load(s.bar + j), j);
    return found.best(s, n);
}

/// Removes q: its term of H becomes row `pending` of u, the other weights and the diagonal move. Returns the cheapest
/// of those that are left.
template <class T>
inline Index remove(const T* h, Index n, Index stride, T* u, Index pending, Index q, const Survivors<T>& s) {
    using S = Simd<T>;
    using Vector = typename S::Vector;
    for (Index j = 0; j < q; ++j) s.column[j] = h[q * stride + j];
    for (Index j = q; j < n; ++j) s.column[j] = h[j * stride + q];
    T factors[group_size];
    for (Index p = 0; p < pending; ++p) factors[p] = u[p * stride + q];
    const T scale = T(1) / static_cast<T>(__builtin_sqrt(s.diagonal[q])), step = s.weight[q] * scale;
    s.leave(q, n);
    T* term = u + pending * stride;
    Cheapest<T> found;
    for_tiles<T>(0, n, [&](Index first, auto width) {
        constexpr int vectors = decltype(width)::value;    // several, so that one sum need not wait for the other
        Vector corrected[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) corrected[v] = S::load(s.column + first + v * S::lanes);
        for (Index p = 0; p < pending; ++p)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) corrected[v] -= factors[p] * S::load(u + p * stride + first + v * S::lanes);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const Index j = first + v * S::lanes;
            const Vector moved = corrected[v] * (scale * S::load(s.alive + j));
            const Vector weight = S::load(s.weight + j) - step * moved;
            // H_jj ≥ 1 / A_jj whatever has been removed; rounding must not take it below
            const Vector lower = S::load(s.diagonal + j) - moved * moved, floor = S::load(s.floor + j);
            const Vector diagonal = lower > floor ? lower : floor;
            S::store(term + j, moved);
            S::store(s.weight + j, weight);
            S::store(s.diagonal + j, diagonal);
            found.see(weight, diagonal, S::load(s.bar + j), j);
        }
    });
    return found.best(s, n);
}

/// Moves the numbers of one vector that are alive to `to`, one after the other, and returns how many they are. Writes
/// a whole vector there; `to` may be `from`, or lie before it.
template <class T>
SECATEUR_INLINE Index squeeze_vector(const T* from, const T* alive, T* to) {
#ifdef __AVX512F__
    if constexpr (sizeof(T) == 4) {
        const __mmask16 chosen = _mm512_cmp_ps_mask(_mm512_loadu_ps(alive), _mm512_setzero_ps(), _CMP_NEQ_OQ);
        _mm512_storeu_ps(to, _mm512_maskz_compress_ps(chosen, _mm512_loadu_ps(from)));
        return __builtin_popcount(chosen);
    } else {
        const __mmask8 chosen = _mm512_cmp_pd_mask(_mm512_loadu_pd(alive), _mm512_setzero_pd(), _CMP_NEQ_OQ);
        _mm512_storeu_pd(to, _mm512_maskz_compress_pd(chosen, _mm512_loadu_pd(from)));
        return __builtin_popcount(chosen);
    }
#else
    Index count = 0;
    for (Index j = 0; j < Simd<T>::lanes; ++j) {
        to[count] = from[j];
        count += alive[j] != T(0);
    }
    return count;
#endif
}

/// The same for n numbers; may write a vector past the last.
template <class T>
SECATEUR_INLINE void squeeze(const T* from, const T* alive, Index n, T* to) {
    for (Index j = 0; j < n; j += Simd<T>::lanes) to += squeeze_vector(from + j, alive + j, to);
}

/// Drops the dead rows and columns of H and of u, keeping the order; returns how many are left.
template <class T>
inline Index compact(T* h, Index n, Index stride, T* u, const Survivors<T>& s) {
    Index first = 0;    // rows and columns before the first dead one stay where they are
    while (first < n && s.alive[first] != T(0)) ++first;
    Index left = first = first / Simd<T>::lanes * Simd<T>::lanes;
    for (Index i = first; i < n; ++i) {
        if (s.alive[i] == T(0)) continue;
        const T* from = h + i * stride;
        T* to = h + left * stride;
        if (to != from)
            for (Index j = 0; j < first; ++j) to[j] = from[j];
        squeeze(from + first, s.alive + first, i + 1 - first, to + first);
        s.entry[left] = s.entry[i];
        s.group[left++] = s.group[i];
    }
    T* const state[] = {s.weight, s.diagonal, s.floor, s.bar};
    for (T* numbers : state) squeeze(numbers, s.alive, n, numbers);
    for (Index p = 0; p < group_size; ++p) squeeze(u + p * stride, s.alive, n, u + p * stride);
    for (Index j = 0; j < left; ++j) s.alive[j] = T(1);
    for (Index j = left; j < n; ++j) s.retire(j);
    return left;
}

/// Scores of the n kept entries, in their order at the start, and ∞ for those that never leave; `running` is the loss
/// increase already paid. Returns what it is in the end.
template <class T>
inline double eliminate(T* h, Index n, Index stride, T* u, const Survivors<T>& s, double running, double* scores) {
    while (n > 0) {
        Index pending = 0;
        Index q = cheapest(s, n);
        for (; q < n && pending < smaller(n, group_size); ++pending) {
            const double weight = s.weight[q];
            running += 0.5 * weight * weight / s.diagonal[q];
            scores[s.entry[q]] = running;
            q = remove(h, n, stride, u, pending, q, s);
        }
        if (pending == n || q == n) break;
        n = compact(h, n, stride, u, s);
        downdate(h, n, stride, u, pending);
    }
    return running;
}

}    // namespace secateur::SECATEUR_VARIANT

// CAP's greedy elimination of one block (paper, eq. for the OBS update), n³/3 operations on H = A⁻¹ in cache.
//
// Each removal changes H by a rank-one term H_:q H_q: / H_qq = uuᵀ. Terms wait in groups: until a group is complete
// the column of the next weight is corrected on the fly, and only the diagonal is kept current. Then the dead rows
// leave H and the whole group is subtracted at once, with one pass over H instead of `group_size`.
#pragma once
#include "factor.h"

namespace secateur::SECATEUR_VARIANT {

constexpr Index group_size = 32;

/// What one elimination carries, `stride` numbers each; entries past n, and dead ones, have alive = 0, weight = ∞.
struct Survivors {
    double *weight, *diagonal, *floor, *alive, *column;
    double* bar;     // ∞ for what may not leave, because its group has no more to give; else 0
    Index* entry;    // position among the kept entries at the start
    Index* group;    // which of the groups it is in

    Index* room;     // by group: how many may still leave

    void retire(Index j) const {
        weight[j] = __builtin_inf();
        diagonal[j] = floor[j] = 1.0;
        alive[j] = column[j] = bar[j] = 0.0;
        group[j] = -1;
    }

    /// Retires q, and bars its group where q was the last that it could give.
    void leave(Index q, Index n) const {
        const Index own = group[q];
        retire(q);
        if (own < 0 || --room[own] > 0) return;
        for (Index j = 0; j < n; ++j)
            if (group[j] == own) bar[j] = __builtin_inf();
    }
};

/// The cheapest weight seen so far, lane by lane: costs and their indices.
struct Cheapest {
    using S = Simd<double>;
    typedef long long Indices __attribute__((vector_size(SECATEUR_VECTOR_BYTES)));

    S::Vector cost = S::Vector{} + __builtin_inf();
    Indices index = {};

    /// Costs w² / H_jj of the weights from j on; of equal costs the earlier one stays.
    SECATEUR_INLINE void see(S::Vector weight, S::Vector diagonal, S::Vector bar, Index j) {
        const S::Vector found = weight * weight / diagonal + bar;
        const Indices less = found < cost;
        cost = less ? found : cost;
        index = less ? Indices{} + j : index;
    }

    /// The lowest index of the least cost; where only costs that overflowed are left, the first that may leave; n
    /// where none may.
    SECATEUR_INLINE Index best(const Survivors& s, Index n) const {
        double least = __builtin_inf();
        Index first = n;
        for (int lane = 0; lane < S::lanes; ++lane) {
            const Index j = index[lane] + lane;
            if (cost[lane] < least || (cost[lane] == least && cost[lane] < __builtin_inf() && j < first))
                least = cost[lane], first = j;
        }
        if (first < n) return first;
        for (Index j = 0; j < n; ++j)
            if (s.alive[j] != 0.0 && s.bar[j] == 0.0) return j;
        return n;
    }
};

inline Index cheapest(const Survivors& s, Index n) {
    using S = Simd<double>;
    Cheapest found;
    for (Index j = 0; j < n; j += S::lanes) found.see(S::load(s.weight + j), S::load(s.diagonal + j), S::load(s.bar + j), j);
    return found.best(s, n);
}

/// Removes q: its term of H becomes row `pending` of u, the other weights and the diagonal move. Returns the cheapest
/// of those that are left.
inline Index remove(const double* h, Index n, Index stride, double* u, Index pending, Index q, const Survivors& s) {
    using S = Simd<double>;
    for (Index j = 0; j < q; ++j) s.column[j] = h[q * stride + j];
    for (Index j = q; j < n; ++j) s.column[j] = h[j * stride + q];
    double factors[group_size];
    for (Index p = 0; p < pending; ++p) factors[p] = u[p * stride + q];
    const double scale = 1.0 / __builtin_sqrt(s.diagonal[q]), step = s.weight[q] * scale;
    s.leave(q, n);
    double* term = u + pending * stride;
    Cheapest found;
    for_tiles<double>(0, n, [&](Index first, auto width) {
        constexpr int vectors = decltype(width)::value;    // several, so that one sum need not wait for the other
        S::Vector corrected[vectors];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) corrected[v] = S::load(s.column + first + v * S::lanes);
        for (Index p = 0; p < pending; ++p)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) corrected[v] -= factors[p] * S::load(u + p * stride + first + v * S::lanes);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const Index j = first + v * S::lanes;
            const S::Vector moved = corrected[v] * (scale * S::load(s.alive + j));
            const S::Vector weight = S::load(s.weight + j) - step * moved;
            // H_jj ≥ 1 / A_jj whatever has been removed; rounding must not take it below
            const S::Vector lower = S::load(s.diagonal + j) - moved * moved, floor = S::load(s.floor + j);
            const S::Vector diagonal = lower > floor ? lower : floor;
            S::store(term + j, moved);
            S::store(s.weight + j, weight);
            S::store(s.diagonal + j, diagonal);
            found.see(weight, diagonal, S::load(s.bar + j), j);
        }
    });
    return found.best(s, n);
}

/// Drops the dead rows and columns of H and of u, keeping the order; returns how many are left.
inline Index compact(double* h, Index n, Index stride, double* u, const Survivors& s, Index* source) {
    Index left = 0;
    for (Index j = 0; j < n; ++j)
        if (s.alive[j] != 0.0) source[left++] = j;
    Index first = 0;    // rows and columns before the first dead one stay where they are
    while (first < left && source[first] == first) ++first;
    for (Index i = first; i < left; ++i) {
        const double* from = h + source[i] * stride;
        double* to = h + i * stride;
        if (to != from)
            for (Index j = 0; j < first; ++j) to[j] = from[j];
        for (Index j = first; j <= i; ++j) to[j] = from[source[j]];
        s.weight[i] = s.weight[source[i]];
        s.diagonal[i] = s.diagonal[source[i]];
        s.floor[i] = s.floor[source[i]];
        s.entry[i] = s.entry[source[i]];
        s.bar[i] = s.bar[source[i]];
        s.group[i] = s.group[source[i]];
        s.alive[i] = 1.0;
    }
    for (Index p = 0; p < group_size; ++p)
        for (Index j = first; j < left; ++j) u[p * stride + j] = u[p * stride + source[j]];
    for (Index j = left; j < n; ++j) s.retire(j);
    return left;
}

/// Scores of the n kept entries, in their order at the start, and ∞ for those that never leave; `running` is the loss
/// increase already paid. Returns what it is in the end.
inline double eliminate(double* h, Index n, Index stride, double* u, const Survivors& s, Index* source, double running,
                      double* scores) {
    while (n > 0) {
        Index pending = 0;
        Index q = cheapest(s, n);
        for (; q < n && pending < smaller(n, group_size); ++pending) {
            running += 0.5 * s.weight[q] * s.weight[q] / s.diagonal[q];
            scores[s.entry[q]] = running;
            q = remove(h, n, stride, u, pending, q, s);
        }
        if (pending == n || q == n) break;
        n = compact(h, n, stride, u, s, source);
        downdate(h, n, stride, u, pending);
    }
    return running;
}

}    // namespace secateur::SECATEUR_VARIANT

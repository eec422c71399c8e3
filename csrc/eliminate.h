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
    double *weight, *diagonal, *floor, *alive, *column, *cost;
    Index* entry;    // position among the kept entries at the start

    void retire(Index j) const {
        weight[j] = __builtin_inf();
        diagonal[j] = floor[j] = 1.0;
        alive[j] = column[j] = 0.0;
    }
};

/// costs w² / H_jj of the first n entries; returns the cheapest, the lowest index where several are.
inline Index cheapest(const Survivors& s, Index n) {
    double least = __builtin_inf();
#pragma omp simd reduction(min : least)
    for (Index j = 0; j < n; ++j) {
        const double cost = s.weight[j] * s.weight[j] / s.diagonal[j];
        s.cost[j] = cost;
        least = cost < least ? cost : least;
    }
    for (Index j = 0; j < n; ++j)
        if (s.cost[j] == least && s.alive[j] != 0.0) return j;
    for (Index j = 0; j < n; ++j)
        if (s.alive[j] != 0.0) return j;    // only costs that overflowed are left
    return 0;
}

/// Removes q: its term of H becomes row `pending` of u, the other weights and the diagonal move.
inline void remove(const double* h, Index n, Index stride, double* u, Index pending, Index q, const Survivors& s) {
    using S = Simd<double>;
    for (Index j = 0; j < q; ++j) s.column[j] = h[q * stride + j];
    for (Index j = q; j < n; ++j) s.column[j] = h[j * stride + q];
    const double scale = 1.0 / __builtin_sqrt(s.diagonal[q]), step = s.weight[q] * scale;
    double* term = u + pending * stride;
    for (Index j = 0; j < n; j += S::lanes) {
        S::Vector corrected = S::load(s.column + j);
        for (Index p = 0; p < pending; ++p) corrected -= u[p * stride + q] * S::load(u + p * stride + j);
        corrected *= scale * S::load(s.alive + j);
        S::store(term + j, corrected);
        S::store(s.weight + j, S::load(s.weight + j) - step * corrected);
        // H_jj ≥ 1 / A_jj whatever has been removed; rounding must not take it below
        const S::Vector moved = S::load(s.diagonal + j) - corrected * corrected, floor = S::load(s.floor + j);
        S::store(s.diagonal + j, moved > floor ? moved : floor);
    }
    s.retire(q);
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
        s.alive[i] = 1.0;
    }
    for (Index p = 0; p < group_size; ++p)
        for (Index j = first; j < left; ++j) u[p * stride + j] = u[p * stride + source[j]];
    for (Index j = left; j < n; ++j) s.retire(j);
    return left;
}

/// Scores of the n kept entries, in their order at the start; `running` is the loss increase already paid.
inline void eliminate(double* h, Index n, Index stride, double* u, const Survivors& s, Index* source, double running,
                      double* scores) {
    while (n > 0) {
        Index pending = 0;
        for (; pending < smaller(n, group_size); ++pending) {
            const Index q = cheapest(s, n);
            running += 0.5 * s.weight[q] * s.weight[q] / s.diagonal[q];
            scores[s.entry[q]] = running;
            remove(h, n, stride, u, pending, q, s);
        }
        if (pending == n) return;
        n = compact(h, n, stride, u, s, source);
        downdate(h, n, stride, u, pending);
    }
}

}    // namespace secateur::SECATEUR_VARIANT

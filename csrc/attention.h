// Attention of one head over the tokens of one image: scores, softmax and the mean of the values for a few vectors of
// queries at a time, with all their scores in the L1 or L2 cache. Queries, keys and values are panels, so queries come
// in vectors, keys and values one broadcast number at a time, and nothing is transposed.
#pragma once
#include "sparse.h"
#include "vectors.h"

namespace secateur::SECATEUR_VARIANT {

constexpr int keys_at_once = SECATEUR_VECTOR_BYTES == 64 ? 8 : 4;    // × 3 vectors of queries fit the registers

SECATEUR_INLINE float* vector_at(float* const* groups, Index vector) {
    return groups[vector * lanes / group] + vector * lanes % group;
}

/// scores (tokens rounded up, vectors) of the queries, and the largest of each query.
template <int vectors>
SECATEUR_INLINE void score(const Head& head, const float* const* queries, Vector* scores, Vector* largest) {
    for (int q = 0; q < vectors; ++q) largest[q] = Vector{} - 3.0e38f;
    for (Index key = 0; key < head.tokens; key += keys_at_once) {
        const float* k = head.groups[key / group] + head.keys + key % group;
        Vector sums[keys_at_once][vectors] = {};
        for (Index f = 0; f < head.size; ++f) {
            Vector query[vectors];
#pragma GCC unroll 4
            for (int q = 0; q < vectors; ++q) query[q] = load(queries[q] + f * panel);
#pragma GCC unroll 8
            for (int i = 0; i < keys_at_once; ++i)
#pragma GCC unroll 4
                for (int q = 0; q < vectors; ++q) sums[i][q] += query[q] * k[f * panel + i];
        }
        const Index left = head.tokens - key;
#pragma GCC unroll 8
        for (int i = 0; i < keys_at_once; ++i)
#pragma GCC unroll 4
            for (int q = 0; q < vectors; ++q) {
                scores[(key + i) * vectors + q] = sums[i][q];
                if (i < left) largest[q] = larger(largest[q], sums[i][q]);
            }
    }
}

/// Scores become weights, up to a factor; `total` their sums.
template <int vectors>
SECATEUR_INLINE void weigh(Index tokens, Vector* scores, const Vector* largest, Vector* total) {
    for (int q = 0; q < vectors; ++q) total[q] = Vector{};
    for (Index key = 0; key < tokens; ++key)
#pragma GCC unroll 4
        for (int q = 0; q < vectors; ++q) {
            const Vector weight = exp2(scores[key * vectors + q] - largest[q]);
            scores[key * vectors + q] = weight;
            total[q] += weight;
        }
}

template <int vectors>
SECATEUR_INLINE void mix(const Head& head, const Vector* weights, const Vector* total, float* const* outputs) {
    Vector share[vectors];
    for (int q = 0; q < vectors; ++q) share[q] = 1.0f / total[q];
    for (Index f = 0; f < head.size; f += keys_at_once) {
        Vector sums[keys_at_once][vectors] = {};
        for (Index first = 0; first < head.tokens; first += group) {
            const float* v = head.groups[first / group] + head.values + f * panel;
            const Index count = head.tokens - first < group ? head.tokens - first : group;
            for (Index key = 0; key < count; ++key) {
                Vector weight[vectors];
#pragma GCC unroll 4
                for (int q = 0; q < vectors; ++q) weight[q] = weights[(first + key) * vectors + q];
#pragma GCC unroll 8
                for (int i = 0; i < keys_at_once; ++i)
#pragma GCC unroll 4
                    for (int q = 0; q < vectors; ++q) sums[i][q] += weight[q] * v[i * panel + key];
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < keys_at_once; ++i)
#pragma GCC unroll 4
            for (int q = 0; q < vectors; ++q) store(outputs[q] + (f + i) * panel, sums[i][q] * share[q]);
    }
}

template <int vectors>
void attend_vectors(const Head& head, Index first, Vector* scores) {
    float *queries[vectors], *outputs[vectors];
    for (int q = 0; q < vectors; ++q) queries[q] = vector_at(head.groups, first + q);
    for (int q = 0; q < vectors; ++q) outputs[q] = vector_at(head.outputs, first + q);
    Vector largest[vectors], total[vectors];
    score<vectors>(head, queries, scores, largest);
    weigh<vectors>(head.tokens, scores, largest, total);
    mix<vectors>(head, scores, total, outputs);
}

inline void attend(const Head& head, Index first, Index last, std::byte* scratch) {
    auto* scores = reinterpret_cast<Vector*>(scratch);
    Index at = first * group / lanes;
    for (Index left = (last - first) * group / lanes; left > 0;) {
        const Index now = left == 4 ? 2 : smaller(left, Index(3));    // 2 + 2 reads keys as often as 3 + 1, and is faster
        if (now == 3)
            attend_vectors<3>(head, at, scores);
        else if (now == 2)
            attend_vectors<2>(head, at, scores);
        else
            attend_vectors<1>(head, at, scores);
        at += now;
        left -= now;
    }
}

inline Index attention_scratch(Index tokens) { return round_up(tokens, 8) * 3 * SECATEUR_VECTOR_BYTES; }

}    // namespace secateur::SECATEUR_VARIANT

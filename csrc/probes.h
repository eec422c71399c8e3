// What a core of this machine can do at best: multiply-adds from registers, and loads from the L1 cache.
#pragma once
#include "sparse.h"
#include "vectors.h"

namespace secateur::SECATEUR_VARIANT {

/// Hides a number from the compiler: it cannot know where it comes from, nor that nobody asks for it.
SECATEUR_INLINE Vector hidden(Vector v) {
#if defined(__x86_64__)
    asm volatile("" : "+v"(v));
#elif defined(__aarch64__)
    asm volatile("" : "+w"(v));
#else
    asm volatile("" : "+m"(v));
#endif
    return v;
}

/// Numbers multiplied and added.
inline double probe_multiply_adds(Index rounds) {
    constexpr int chains = SECATEUR_VECTOR_BYTES == 64 ? 16 : 8;
    Vector sums[chains];
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) sums[c] = hidden(Vector{});    // or all chains would be one
    Vector a = Vector{} + 0.5f, b = Vector{} + 1.0f;
    for (Index i = 0; i < rounds; ++i)
#pragma GCC unroll 16
        for (int c = 0; c < chains; ++c) sums[c] = sums[c] * a + b;
#pragma GCC unroll 16
    for (int c = 0; c < chains; ++c) hidden(sums[c]);
    return static_cast<double>(rounds) * chains * lanes;
}

/// Vectors loaded from 16 KiB.
inline double probe_loads(Index rounds) {
    constexpr Index numbers = 4096, chains = 8;
    alignas(64) float from[numbers] = {};
    Vector sums[chains] = {};
    for (Index i = 0; i < rounds; ++i) {
        const float* at = from;
        asm volatile("" : "+r"(at));
        for (Index n = 0; n < numbers; n += chains * lanes)
#pragma GCC unroll 8
            for (Index c = 0; c < chains; ++c) sums[c] += load(at + n + c * lanes);
    }
#pragma GCC unroll 8
    for (Index c = 0; c < chains; ++c) hidden(sums[c]);
    return static_cast<double>(rounds) * numbers / lanes;
}

}    // namespace secateur::SECATEUR_VARIANT

// Vectors of float32 tokens, four weights spread over them, and the functions of one number that networks use.
#pragma once
#include "sparse.h"
#include "tiles.h"

#if SECATEUR_VECTOR_BYTES == 64
#include <immintrin.h>
#endif

namespace secateur::SECATEUR_VARIANT {

using Vector = Simd<float>::Vector;
constexpr Index lanes = Simd<float>::lanes;
typedef std::int32_t Integers __attribute__((vector_size(SECATEUR_VECTOR_BYTES)));

SECATEUR_INLINE Vector load(const float* from) { return Simd<float>::load(from); }
SECATEUR_INLINE void store(float* to, Vector v) { Simd<float>::store(to, v); }
/// Of NaN and another number the second one given: constants come first, so that NaN stays.
SECATEUR_INLINE Vector larger(Vector a, Vector b) { return a > b ? a : b; }
SECATEUR_INLINE Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
SECATEUR_INLINE Vector clamp(Vector v, float least, float most) {
    return smaller(Vector{} + most, larger(Vector{} + least, v));
}

/// Four weights. With AVX-512 they are one load, and spreading one of them takes no further one.
struct Weights {
#if SECATEUR_VECTOR_BYTES == 64
    Vector four;

    // with a mask that keeps all: GCC 12 warns about the plain one
    SECATEUR_INLINE explicit Weights(const float* from)
        : four((Vector)_mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(from))) {}

    template <int i>
    SECATEUR_INLINE Vector spread() const {
        return __builtin_shufflevector(four, four, i, i, i, i, i + 4, i + 4, i + 4, i + 4, i + 8, i + 8, i + 8, i + 8,
                                       i + 12, i + 12, i + 12, i + 12);
    }
#else
    const float* four;

    SECATEUR_INLINE explicit Weights(const float* from) : four(from) {}

    template <int i>
    SECATEUR_INLINE Vector spread() const {
        return Vector{} + four[i];
    }
#endif
};

/// 2ˣ, to 3 · 10⁻⁷ of itself; below 2⁻¹²⁶ it stays there.
SECATEUR_INLINE Vector exp2(Vector x) {
    constexpr float magic = 12582912.0f;    // 1.5 · 2²³: adding it rounds to whole numbers, in the lowest bits
    x = clamp(x, -126.0f, 126.0f);
    const Vector shifted = x + magic;
    const Vector f = x - (shifted - magic);    // in [-½, ½]
    Vector p = Vector{} + 1.33391172e-3f;
    p = p * f + 9.61817e-3f;
    p = p * f + 5.55040541e-2f;
    p = p * f + 2.40226504e-1f;
    p = p * f + 6.93147182e-1f;
    p = p * f + 1.0f;
    return (Vector)((Integers)p + ((Integers)shifted << 23));
}

/// x Φ(x): Φ(x) - ½ is x times a polynomial in x² up to |x| = 5, and constant beyond; to 2 · 10⁻⁶.
SECATEUR_INLINE Vector gelu(Vector x) {
    x = larger(Vector{} - 5.0f, x);    // as good as zero there
    const Vector bounded = smaller(Vector{} + 5.0f, x);
    const Vector u = bounded * bounded * 0.08f - 1.0f;    // in [-1, 1]
    Vector p = Vector{} + 4.790902e-4f;
    p = p * u - 1.50380714e-3f;
    p = p * u + 2.03793636e-3f;
    p = p * u - 2.94163241e-3f;
    p = p * u + 6.13155542e-3f;
    p = p * u - 1.09501267e-2f;
    p = p * u + 1.65116359e-2f;
    p = p * u - 2.33454797e-2f;
    p = p * u + 3.14237848e-2f;
    p = p * u - 4.0431641e-2f;
    p = p * u + 5.1521562e-2f;
    p = p * u - 7.02967048e-2f;
    p = p * u + 1.41363785e-1f;
    return x * (bounded * p + 0.5f);
}

SECATEUR_INLINE Vector silu(Vector x) { return x / (exp2(x * -1.44269504f) + 1.0f); }

template <class Function>
SECATEUR_INLINE void apply(float* to, Index vectors, const Function& f) {
    for (Index v = 0; v < vectors; ++v) store(to + v * lanes, f(load(to + v * lanes)));
}

inline void activate(Activation f, float* to, Index vectors) {
    if (f == Activation::relu) apply(to, vectors, [](Vector x) { return larger(Vector{}, x); });
    if (f == Activation::gelu) apply(to, vectors, [](Vector x) { return gelu(x); });
    if (f == Activation::silu) apply(to, vectors, [](Vector x) { return silu(x); });
}

/// (x - mean) / √(variance + ε) of `vectors` vectors of tokens.
template <int vectors>
void normalise_vectors(const float* x, float* y, Index features, float epsilon) {
    Vector mean[vectors] = {}, scale[vectors] = {};
    for (Index f = 0; f < features; ++f)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) mean[v] += load(x + f * panel + v * lanes);
    for (int v = 0; v < vectors; ++v) mean[v] *= 1.0f / features;
    for (Index f = 0; f < features; ++f)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const Vector d = load(x + f * panel + v * lanes) - mean[v];
            scale[v] += d * d;
        }
    for (int v = 0; v < vectors; ++v)
        for (Index i = 0; i < lanes; ++i) scale[v][i] = 1.0f / __builtin_sqrtf(scale[v][i] * (1.0f / features) + epsilon);
    for (Index f = 0; f < features; ++f)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            store(y + f * panel + v * lanes, (load(x + f * panel + v * lanes) - mean[v]) * scale[v]);
}

inline void normalise(const float* x, float* y, Index features, Index groups, float epsilon) {
    for (Index left = groups * group / lanes; left > 0; left -= 4, x += 4 * lanes, y += 4 * lanes) {
        if (left >= 4)
            normalise_vectors<4>(x, y, features, epsilon);
        else if (left == 3)
            normalise_vectors<3>(x, y, features, epsilon);
        else if (left == 2)
            normalise_vectors<2>(x, y, features, epsilon);
        else
            normalise_vectors<1>(x, y, features, epsilon);
    }
}

}    // namespace secateur::SECATEUR_VARIANT

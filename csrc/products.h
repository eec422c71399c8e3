// The product of a packed matrix and a panel: two rows at a time, one weight times a vector of tokens.
//
// What bounds it is the number of loads, two in a cycle: each entry needs its part of the panel, once for every vector,
// and its weight and offset. So weights and offsets are loaded by fours and spread within registers, and columns that
// two rows share are loaded once for both.
#pragma once
#include "sparse.h"
#include "vectors.h"

namespace secateur::SECATEUR_VARIANT {

/// Four offsets in one register.
struct Offsets {
    std::uint64_t bits;

    SECATEUR_INLINE explicit Offsets(const std::uint16_t* from) {
        __builtin_memcpy(&bits, from, sizeof(bits));
#if defined(__x86_64__)
        asm("" : "+r"(bits));    // or the compiler loads each of them by itself
#endif
    }

    template <int i>
    SECATEUR_INLINE Index at() const {
        return static_cast<std::uint16_t>(bits >> (16 * i));
    }
};

/// Two rows times `vectors` vectors of tokens.
template <int vectors>
struct RowPair {
    Vector first[vectors], second[vectors];

    SECATEUR_INLINE void start(const float* bias, const std::int32_t* rows) {
        for (int v = 0; v < vectors; ++v) first[v] = Vector{} + bias[rows[0]];
        for (int v = 0; v < vectors; ++v) second[v] = Vector{} + bias[rows[1]];
    }

    SECATEUR_INLINE void add(const float* a, const float* b) {
        for (int v = 0; v < vectors; ++v) first[v] += load(a + v * lanes);
        for (int v = 0; v < vectors; ++v) second[v] += load(b + v * lanes);
    }

    SECATEUR_INLINE void load_from(const float* a, const float* b) {
        for (int v = 0; v < vectors; ++v) first[v] = load(a + v * lanes);
        for (int v = 0; v < vectors; ++v) second[v] = load(b + v * lanes);
    }

    SECATEUR_INLINE void store_to(float* a, float* b) const {
        for (int v = 0; v < vectors; ++v) store(a + v * lanes, first[v]);
        for (int v = 0; v < vectors; ++v) store(b + v * lanes, second[v]);
    }

    template <int i>
    SECATEUR_INLINE void add_shared(const Offsets& offsets, const Weights& w0, const Weights& w1, const float* x) {
        const float* from = x + offsets.at<i>();
        const Vector a = w0.spread<i>(), b = w1.spread<i>();
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const Vector tokens = load(from + v * lanes);
            first[v] += a * tokens;
            second[v] += b * tokens;
        }
    }

    template <int i>
    SECATEUR_INLINE void add_single(const Offsets& o0, const Offsets& o1, const Weights& w0, const Weights& w1,
                                    const float* x) {
        const float *from0 = x + o0.at<i>(), *from1 = x + o1.at<i>();
        const Vector a = w0.spread<i>(), b = w1.spread<i>();
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) first[v] += a * load(from0 + v * lanes);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) second[v] += b * load(from1 + v * lanes);
    }

    SECATEUR_INLINE void sum_shared(Cursor& at, Index quads, const float* x) {
        for (; quads; --quads, at.offsets += quad, at.values += 2 * quad) {
            const Offsets offsets(at.offsets);
            const Weights w0(at.values), w1(at.values + quad);
            add_shared<0>(offsets, w0, w1, x);
            add_shared<1>(offsets, w0, w1, x);
            add_shared<2>(offsets, w0, w1, x);
            add_shared<3>(offsets, w0, w1, x);
        }
    }

    SECATEUR_INLINE void sum_singles(Cursor& at, Index entries, const float* x) {
        for (; entries > 0; entries -= quad, at.offsets += 2 * quad, at.values += 2 * quad) {
            const Offsets o0(at.offsets), o1(at.offsets + quad);
            const Weights w0(at.values), w1(at.values + quad);
            add_single<0>(o0, o1, w0, w1, x);
            if (entries > 1) add_single<1>(o0, o1, w0, w1, x);
            if (entries > 2) add_single<2>(o0, o1, w0, w1, x);
            if (entries > 3) add_single<3>(o0, o1, w0, w1, x);
        }
    }
};

/// How a block of columns joins what stands in the output.
struct Step {
    bool first, last, add;
    Activation f;
};

/// One block of columns for `vectors` vectors of tokens.
template <int vectors>
Cursor add_block(const PackedMatrix& w, Cursor at, const float* x, float* y, Step step) {
    const std::int32_t* end = at.tile + 4 * w.tiles_per_block;
    for (; at.tile != end; at.tile += 4) {
        float *a = y + at.tile[0] * panel, *b = y + at.tile[1] * panel;
        RowPair<vectors> sums;
        if (step.first) {
            sums.start(w.bias, at.tile);
            if (step.add) sums.add(a, b);
        } else {
            sums.load_from(a, b);
        }
        sums.sum_shared(at, at.tile[2], x);
        sums.sum_singles(at, at.tile[3], x);
        sums.store_to(a, b);
        if (step.last && step.f != Activation::none) {
            activate(step.f, a, vectors);
            activate(step.f, b, vectors);
        }
    }
    return at;
}

inline Cursor block_product(const PackedMatrix& w, Cursor at, const float* x, float* y, Index groups, bool first,
                            bool last, bool add, Activation f) {
    constexpr int most = 4;    // vectors: two rows of them fit the registers
    const Step step{first, last, add, f};
    Cursor next = at;
    for (Index left = groups * group / lanes; left > 0; left -= most, x += most * lanes, y += most * lanes) {
        if (left >= 4)
            next = add_block<4>(w, at, x, y, step);
        else if (left == 3)
            next = add_block<3>(w, at, x, y, step);
        else if (left == 2)
            next = add_block<2>(w, at, x, y, step);
        else
            next = add_block<1>(w, at, x, y, step);
    }
    return next;
}

inline void product(const PackedMatrix& w, const float* x, float* y, Index groups, bool add, Activation f) {
    Cursor at{w.tiles, w.values, w.offsets};
    const Index blocks = w.blocks();
    for (Index b = 0; b < blocks; ++b)
        at = block_product(w, at, x + b * w.width * panel, y, groups, b == 0, b == blocks - 1, add, f);
}

}    // namespace secateur::SECATEUR_VARIANT

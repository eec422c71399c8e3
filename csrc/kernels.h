// The contract between the kernels, their instruction-set variants and the bindings.
//
// Every kernel works on one Fisher block, in cache, and touches nothing of the other blocks, so blocks may run in any
// order and on any thread with the same result. Arrays are row-major and contiguous, outputs never alias inputs, and
// only the lower triangle of a Fisher block is read or written. K stands for the kept entries of a block, D for the
// dropped ones, and A = F_KK + λI. Arithmetic is float64, except in `accumulate`, which is float32.
#pragma once
#include <cstddef>

namespace secateur {

using Index = std::ptrdiff_t;

template <class T>
struct Problem {
    Index blocks, size;
    const T* input;      // (blocks, size): the weights, or the right-hand side; unused by inverse_diagonal
    const bool* keep;    // (blocks, size)
    const T* fisher;     // (blocks, size, size)
    double damping;      // λ, finite and not negative
    T* output;           // (blocks, size)
    double* used;        // (blocks): the λ that let A factor; NaN, and a block of NaN, where numbers were not finite
};

struct Accumulation {
    Index blocks, size, samples;
    const float* gradients;    // (samples, blocks * size)
    float* fisher;             // (blocks, size, size)
};

/// `scratch` is 64-byte aligned, private to the calling thread, and as large as the variant asks for.
template <class P>
using Kernel = void (*)(const P& problem, Index block, std::byte* scratch);

template <class T>
struct Solvers {
    Kernel<Problem<T>> cap_scores;          // loss increase when each kept entry leaves, in CAP's greedy order
    Kernel<Problem<T>> inverse_diagonal;    // diag(A⁻¹)
    Kernel<Problem<T>> solve_kept;          // A⁻¹ rhs_K
    Kernel<Problem<T>> compensate;          // A⁻¹ ((F + λI) w)_K: the best kept weights once the others are zero
};

/// One instruction set: the same source, compiled with other flags.
struct Variant {
    Solvers<float> float32;
    Solvers<double> float64;
    Kernel<Accumulation> accumulate;        // F += GᵀG
    Index (*solver_scratch)(Index size);    // bytes
    Index (*accumulate_scratch)(Index size);
};

}    // namespace secateur

// The contract between the kernels, their instruction-set variants and the bindings.
//
// Every kernel works on one Fisher block, in cache, and touches nothing of the other blocks, so blocks may run in any
// order and on any thread with the same result. Arrays are row-major and contiguous, and outputs never alias inputs.
// Of a Fisher block only the lower triangle is read or written. It is stored square, (size, size), or packed: its rows
// of 1, 2, … size numbers one after the other. K stands for the kept entries of a block, D for the dropped ones, and
// A = F_KK + λI. Arithmetic is float64, except in `accumulate`, which adds in float32, and in `cap_scores` of float32
// numbers, where a block that is well conditioned is scored in float32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace secateur {

using Index = std::ptrdiff_t;

template <class T>
struct Problem {
    Index blocks, size;
    const T* input;      // (blocks, size): the weights, or the right-hand side; unused by inverse_diagonal
    const bool* keep;    // (blocks, size)
    const T* fisher;     // (blocks, size, size), or (blocks, size · (size + 1) / 2)
    bool packed;
    double damping;      // λ, finite and not negative
    Index group, most;   // of every `group` neighbours at most `most` may leave; 0 for no such bound. cap_scores only
    T* output;           // (blocks, size)
    double* used;        // (blocks): the λ that let A factor; NaN, and a block of NaN, where numbers were not finite
};

struct Bf16 {
    std::uint16_t bits;    // the upper half of a float32
};

template <class G>
struct Accumulation {
    Index blocks, size, weights, samples;
    const G* gradients;    // (samples, weights), weights ≤ blocks · size; what is missing in the last block counts as 0
    float* fisher;         // (blocks, size · (size + 1) / 2), packed
};

/// `scratch` is 64-byte aligned, private to the calling thread, and as large as the variant asks for.
template <class P>
using Kernel = void (*)(const P& problem, Index block, std::byte* scratch);

template <class T>
struct Solvers {
    Kernel<Problem<T>> cap_scores;          // loss increase when each kept entry leaves, in CAP's order; ∞ if never
    Kernel<Problem<T>> inverse_diagonal;    // diag(A⁻¹)
    Kernel<Problem<T>> solve_kept;          // A⁻¹ rhs_K
    Kernel<Problem<T>> compensate;          // A⁻¹ ((F + λI) w)_K: the best kept weights once the others are zero
    Kernel<Problem<T>> loss_increase;       // ½ δᵀFδ for the input δ, in the first entry of the output's row
};

/// One instruction set: the same source, compiled with other flags.
struct Variant {
    Solvers<float> float32;
    Solvers<double> float64;
    Kernel<Accumulation<float>> accumulate_float32;    // F += GᵀG
    Kernel<Accumulation<Bf16>> accumulate_bfloat16;
    Index (*solver_scratch)(Index size);    // bytes
    Index (*accumulate_scratch)(Index size);
};

}    // namespace secateur

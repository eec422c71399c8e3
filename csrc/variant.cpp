// The kernels of kernels.h for one instruction set; CMakeLists.txt compiles this file once per variant.
#include "accumulate.h"
#include "block.h"

namespace secateur {
namespace SECATEUR_VARIANT {

template <class T>
bool dropped_are_zero(const Block<T>& block) {
    for (Index j = 0; j < block.size; ++j)
        if (!block.keep[j] && block.input[j] != T(0)) return false;
    return true;
}

/// The change of the weights when the dropped ones become zero, by kept entry in w.y: A⁻¹ F_KD w_D.
/// (A⁻¹ ((F + λI) w)_K is w_K plus this, with less to round.) Needs L in w.a.
template <class T>
void joint_change(const Block<T>& block, const Workspace& w) {
    for (Index j = 0; j < block.size; ++j) w.x[j] = block.keep[j] ? 0.0 : static_cast<double>(block.input[j]);
    symmetric_product(block.fisher, block.size, w.x, w.z);
    for (Index i = 0; i < block.n; ++i) w.y[i] = w.z[block.kept[i]];
    solve_factored(w.a, block.n, w.stride, w.y);
}

/// ½ δᵀ(F + λI)δ for that change: w.y on the kept entries, -w on the dropped ones.
template <class T>
double loss_increase(const Block<T>& block, const Workspace& w) {
    for (Index j = 0; j < block.size; ++j) w.x[j] = block.keep[j] ? 0.0 : -static_cast<double>(block.input[j]);
    for (Index i = 0; i < block.n; ++i) w.x[block.kept[i]] = w.y[i];
    symmetric_product(block.fisher, block.size, w.x, w.z);
    double twice = 0.0;
    for (Index j = 0; j < block.size; ++j) twice += w.x[j] * (w.z[j] + *block.used * w.x[j]);
    return twice > 0.0 ? 0.5 * twice : 0.0 * twice;    // NaN stays NaN
}

/// Which groups the survivors are in, and how many each may still give: dropped weights have left already.
template <class T>
void bar_groups(const Block<T>& block, const Survivors& s) {
    for (Index i = 0; i < block.n; ++i) {
        s.bar[i] = 0.0;
        s.group[i] = block.group ? block.kept[i] / block.group : -1;
    }
    if (!block.group) return;
    for (Index g = 0; g * block.group < block.size; ++g) s.room[g] = block.most;
    for (Index j = 0; j < block.size; ++j)
        if (!block.keep[j]) --s.room[j / block.group];
    for (Index i = 0; i < block.n; ++i)
        if (s.room[s.group[i]] <= 0) s.bar[i] = __builtin_inf();
}

template <class T>
void cap_scores(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w);
    *block.used = problem.damping;
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    const bool changes = !dropped_are_zero(block);
    if (changes) joint_change(block, w);
    const double running = changes ? loss_increase(block, w) : 0.0;
    const Survivors& s = w.survivors;
    for (Index i = 0; i < block.n; ++i) {
        const Index j = block.kept[i];
        s.weight[i] = block.input[j] + (changes ? w.y[i] : 0.0);
        if (!__builtin_isfinite(s.weight[i])) return block.spoil();
        s.floor[i] = 1.0 / (block.fisher.row(j)[j] + *block.used);
        s.alive[i] = 1.0;
        s.entry[i] = i;
    }
    bar_groups(block, s);
    for (Index i = block.n; i < w.stride; ++i) s.retire(i);
    invert_transposed(w.a, block.n, w.stride, w.b);
    square_upper(w.b, block.n, w.stride, w.a);
    for (Index i = 0; i < block.n; ++i) s.diagonal[i] = w.a[i * w.stride + i];
    for (Index i = 0; i < block.n; ++i) w.x[i] = __builtin_inf();
    const double total = eliminate(w.a, block.n, w.stride, w.terms, s, w.source, running, w.x);
    if (!__builtin_isfinite(total)) return block.spoil();
    block.fill(static_cast<T>(-__builtin_inf()));
    for (Index i = 0; i < block.n; ++i) block.output[block.kept[i]] = static_cast<T>(w.x[i]);
}

template <class T>
void inverse_diagonal(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w);
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    invert_transposed(w.a, block.n, w.stride, w.b);
    for (Index i = 0; i < block.n; ++i) w.x[i] = 0.0;
    for (Index p = 0; p < block.n; ++p) {
        const double* row = w.b + p * w.stride;
#pragma omp simd
        for (Index i = p; i < block.n; ++i) w.x[i] += row[i] * row[i];
    }
    block.write(w.x, T(0));
}

template <class T>
void solve_kept(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w);
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    for (Index i = 0; i < block.n; ++i) w.x[i] = block.input[block.kept[i]];
    solve_factored(w.a, block.n, w.stride, w.x);
    block.write(w.x, T(0));
}

template <class T>
void compensate(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w);
    *block.used = problem.damping;
    if (dropped_are_zero(block)) {    // nothing new left: the weights are their own solution, to the last bit
        for (Index j = 0; j < block.size; ++j) block.output[j] = block.keep[j] ? block.input[j] : T(0);
        return;
    }
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    joint_change(block, w);
    for (Index i = 0; i < block.n; ++i) w.y[i] += block.input[block.kept[i]];
    block.write(w.y, T(0));
}

template <class T>
void loss_increase(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w);
    for (Index j = 0; j < block.size; ++j) w.x[j] = block.input[j];
    symmetric_product(block.fisher, block.size, w.x, w.z);
    double twice = 0.0;
    for (Index j = 0; j < block.size; ++j) twice += w.x[j] * w.z[j];
    block.fill(T(0));
    block.output[0] = static_cast<T>(0.5 * twice);
    *block.used = problem.damping;
}

template <class T>
constexpr Solvers<T> solvers = {cap_scores<T>, inverse_diagonal<T>, solve_kept<T>, compensate<T>, loss_increase<T>};

extern const Variant variant;
const Variant variant = {solvers<float>, solvers<double>, accumulate<float>, accumulate<Bf16>, solver_scratch, accumulate_scratch};

}    // namespace SECATEUR_VARIANT
}    // namespace secateur

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
void joint_change(const Block<T>& block, const Workspace<double>& w) {
    for (Index j = 0; j < block.size; ++j) w.x[j] = block.keep[j] ? 0.0 : static_cast<double>(block.input[j]);
    symmetric_product(block.fisher, block.size, w.x, w.z);
    for (Index i = 0; i < block.n; ++i) w.y[i] = w.z[block.kept[i]];
    solve_factored(w.a, block.n, w.stride, w.y);
}

/// ½ δᵀ(F + λI)δ for that change: w.y on the kept entries, -w on the dropped ones.
template <class T>
double loss_increase(const Block<T>& block, const Workspace<double>& w) {
    for (Index j = 0; j < block.size; ++j) w.x[j] = block.keep[j] ? 0.0 : -static_cast<double>(block.input[j]);
    for (Index i = 0; i < block.n; ++i) w.x[block.kept[i]] = w.y[i];
    symmetric_product(block.fisher, block.size, w.x, w.z);
    double twice = 0.0;
    for (Index j = 0; j < block.size; ++j) twice += w.x[j] * (w.z[j] + *block.used * w.x[j]);
    return twice > 0.0 ? 0.5 * twice : 0.0 * twice;    // NaN stays NaN
}

/// Which groups the survivors are in, and how many each may still give: dropped weights have left already.
template <class T, class Real>
void bar_groups(const Block<T>& block, const Survivors<Real>& s) {
    for (Index i = 0; i < block.n; ++i) {
        s.bar[i] = Real(0);
        s.group[i] = block.group ? block.kept[i] / block.group : -1;
    }
    if (!block.group) return;
    for (Index g = 0; g * block.group < block.size; ++g) s.room[g] = block.most;
    for (Index j = 0; j < block.size; ++j)
        if (!block.keep[j]) --s.room[j / block.group];
    for (Index i = 0; i < block.n; ++i)
        if (s.room[s.group[i]] <= 0) s.bar[i] = static_cast<Real>(__builtin_inf());
}

/// Writes the scores, ∞ for what never leaves, from N in w.b and the survivors' weights and floors; `unit` times what
/// the elimination pays, on top of `running`, is a loss. False, with nothing written, when that is not finite.
template <class T, class Real>
bool write_scores(const Block<T>& block, const Workspace<Real>& w, double running, double unit) {
    const Survivors<Real>& s = w.survivors;
    square_upper(w.b, block.n, w.stride, w.a);
    for (Index i = 0; i < block.n; ++i) {
        s.diagonal[i] = w.a[i * w.stride + i];
        s.alive[i] = Real(1);
        s.entry[i] = i;
        w.x[i] = __builtin_inf();
    }
    bar_groups(block, s);
    for (Index i = block.n; i < w.stride; ++i) s.retire(i);
    if (!__builtin_isfinite(eliminate(w.a, block.n, w.stride, w.terms, s, running / unit, w.x))) return false;
    block.fill(static_cast<T>(-__builtin_inf()));
    for (Index i = 0; i < block.n; ++i) block.output[block.kept[i]] = static_cast<T>(unit * w.x[i]);
    return true;
}

/// CAP in float32, with twice the numbers in a vector, on DAD with D = diag(A)^-½, which changes no score. What rounding
/// costs grows with the diagonal of the inverse, so where that exceeds `steepest` nothing is written: false.
inline bool score_narrow(const Block<float>& block, double damping, std::byte* scratch) {
    constexpr float steepest = 1000.0f;
    const Workspace<float> w(block.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Survivors<float>& s = w.survivors;
    double unit = 0.0;
    for (Index i = 0; i < block.n; ++i) {
        const Index j = block.kept[i];
        const double root = __builtin_sqrt(block.fisher.row(j)[j] + damping);
        s.floor[i] = static_cast<float>(1.0 / root);
        w.x[i] = block.input[j] * root;
        if (!(root > 0.0) || !__builtin_isfinite(w.x[i])) return false;
        unit = __builtin_fabs(w.x[i]) > unit ? __builtin_fabs(w.x[i]) : unit;
    }
    if (unit == 0.0) unit = 1.0;
    gather_scaled(block, s.floor, w.a, w.stride);
    for (Index i = 0; i < block.n; ++i) {
        s.weight[i] = static_cast<float>(w.x[i] / unit);
        s.floor[i] = 1.0f;
    }
    if (!factor(w.a, block.n, w.stride, 1.0f / steepest)) return false;
    invert_transposed(w.a, block.n, w.stride, w.b);
    square_sums(w.b, block.n, w.stride, s.diagonal);
    for (Index i = 0; i < block.n; ++i)
        if (!(s.diagonal[i] <= steepest)) return false;
    return write_scores(block, w, 0.0, unit * unit);
}

inline bool score_narrow(const Block<double>&, double, std::byte*) { return false; }

template <class T>
void cap_scores(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace<double> w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w.kept);
    *block.used = problem.damping;
    const bool changes = !dropped_are_zero(block);
    if (!changes && score_narrow(block, problem.damping, scratch)) return;
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    if (changes) joint_change(block, w);
    for (Index i = 0; i < block.n; ++i) {
        const Index j = block.kept[i];
        w.survivors.weight[i] = block.input[j] + (changes ? w.y[i] : 0.0);
        if (!__builtin_isfinite(w.survivors.weight[i])) return block.spoil();
        w.survivors.floor[i] = 1.0 / (block.fisher.row(j)[j] + *block.used);
    }
    const double running = changes ? loss_increase(block, w) : 0.0;
    invert_transposed(w.a, block.n, w.stride, w.b);
    if (!write_scores(block, w, running, 1.0)) block.spoil();
}

template <class T>
void inverse_diagonal(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace<double> w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w.kept);
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    invert_transposed(w.a, block.n, w.stride, w.b);
    square_sums(w.b, block.n, w.stride, w.x);
    block.write(w.x, T(0));
}

template <class T>
void solve_kept(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace<double> w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w.kept);
    if (!factor_kept(block, problem.damping, w)) return block.spoil();
    for (Index i = 0; i < block.n; ++i) w.x[i] = block.input[block.kept[i]];
    solve_factored(w.a, block.n, w.stride, w.x);
    block.write(w.x, T(0));
}

template <class T>
void compensate(const Problem<T>& problem, Index index, std::byte* scratch) {
    Workspace<double> w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w.kept);
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
    Workspace<double> w(problem.size, reinterpret_cast<std::uintptr_t>(scratch));
    const Block<T> block(problem, index, w.kept);
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

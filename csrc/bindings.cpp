// The module secateur._core: checks shapes, releases the GIL, spreads blocks over threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dispatch.h"
#include "parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace secateur;

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

Choice chosen;

void require(bool fits) {
    if (!fits) throw nb::value_error("the shapes of the arrays do not agree");
}

template <class T>
const Solvers<T>& solvers() {
    if constexpr (sizeof(T) == 4)
        return chosen.variant->float32;
    else
        return chosen.variant->float64;
}

template <class T>
void solve(Kernel<Problem<T>> kernel, const T* input, const Array<const bool, 2>& keep,
           const Array<const T, 3>& fisher, double damping, const Array<T, 2>& output, const Array<double, 1>& used,
           int threads) {
    const Index blocks = keep.shape(0), size = keep.shape(1);
    require(Index(fisher.shape(0)) == blocks && Index(fisher.shape(1)) == size && Index(fisher.shape(2)) == size);
    require(Index(output.shape(0)) == blocks && Index(output.shape(1)) == size && Index(used.shape(0)) == blocks);
    const Problem<T> problem{blocks, size, input, keep.data(), fisher.data(), damping, output.data(), used.data()};
    nb::gil_scoped_release release;
    for_each_block(blocks, threads, chosen.variant->solver_scratch(size),
                   [&](Index block, std::byte* scratch) { kernel(problem, block, scratch); });
}

/// kernel(input, keep, fisher, damping, output, used, threads)
template <class T>
void bind_with_input(nb::module_& m, const char* name, Kernel<Problem<T>> Solvers<T>::* kernel) {
    const auto call = [kernel](Array<const T, 2> input, Array<const bool, 2> keep, Array<const T, 3> fisher,
                               double damping, Array<T, 2> output, Array<double, 1> used, int threads) {
        require(input.shape(0) == keep.shape(0) && input.shape(1) == keep.shape(1));
        solve<T>(solvers<T>().*kernel, input.data(), keep, fisher, damping, output, used, threads);
    };
    m.def(name, call, "input"_a.noconvert(), "keep"_a.noconvert(), "fisher"_a.noconvert(), "damping"_a,
          "output"_a.noconvert(), "used"_a.noconvert(), "threads"_a);
}

template <class T>
void bind(nb::module_& m) {
    bind_with_input<T>(m, "cap_scores", &Solvers<T>::cap_scores);
    bind_with_input<T>(m, "solve_kept", &Solvers<T>::solve_kept);
    bind_with_input<T>(m, "compensate", &Solvers<T>::compensate);
    const auto inverse_diagonal = [](Array<const bool, 2> keep, Array<const T, 3> fisher, double damping,
                                     Array<T, 2> output, Array<double, 1> used, int threads) {
        solve<T>(solvers<T>().inverse_diagonal, nullptr, keep, fisher, damping, output, used, threads);
    };
    m.def("inverse_diagonal", inverse_diagonal, "keep"_a.noconvert(), "fisher"_a.noconvert(), "damping"_a,
          "output"_a.noconvert(), "used"_a.noconvert(), "threads"_a);
}

void accumulate(Array<float, 3> fisher, Array<const float, 2> gradients, int threads) {
    const Index blocks = fisher.shape(0), size = fisher.shape(1), samples = gradients.shape(0);
    require(Index(fisher.shape(2)) == size && Index(gradients.shape(1)) == blocks * size);
    const Accumulation problem{blocks, size, samples, gradients.data(), fisher.data()};
    nb::gil_scoped_release release;
    for_each_block(blocks, threads, chosen.variant->accumulate_scratch(size),
                   [&](Index block, std::byte* scratch) { chosen.variant->accumulate(problem, block, scratch); });
}

}    // namespace

NB_MODULE(_core, m) {
    m.doc() = "Block kernels of secateur; see csrc/kernels.h for their contract and secateur.native for their use.";
    chosen = choose_variant();
    m.def("isa", [] { return chosen.name; }, "The instruction set in use.");
    m.def(
        "isas",
        [] {
            std::vector<std::string> names;
            for (const Choice& choice : supported_variants()) names.push_back(choice.name);
            return names;
        },
        "The instruction sets this machine supports, slowest first; SECATEUR_ISA chooses one.");
    bind<float>(m);
    bind<double>(m);
    m.def("accumulate", &accumulate, "fisher"_a.noconvert(), "gradients"_a.noconvert(), "threads"_a);
}

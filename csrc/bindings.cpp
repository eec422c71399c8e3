// The module secateur._core: checks shapes, releases the GIL, spreads blocks over threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dispatch.h"
#include "parallel.h"
#include "sparse_bindings.h"

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

/// The Fisher of a problem, square (blocks, size, size) or packed (blocks, size · (size + 1) / 2).
template <class T>
using Fisher = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;

template <class T>
bool is_packed(const Fisher<T>& fisher, Index blocks, Index size) {
    const bool packed = fisher.ndim() == 2;
    require((packed || fisher.ndim() == 3) && Index(fisher.shape(0)) == blocks);
    require(Index(fisher.shape(1)) == (packed ? size * (size + 1) / 2 : size));
    require(packed || Index(fisher.shape(2)) == size);
    return packed;
}

template <class T>
void solve(Kernel<Problem<T>> kernel, const T* input, const Array<const bool, 2>& keep, const Fisher<T>& fisher,
           double damping, const Array<T, 2>& output, const Array<double, 1>& used, int threads, Index group = 0,
           Index most = 0) {
    const Index blocks = keep.shape(0), size = keep.shape(1);
    const bool packed = is_packed(fisher, blocks, size);
    require(Index(output.shape(0)) == blocks && Index(output.shape(1)) == size && Index(used.shape(0)) == blocks);
    const Problem<T> problem{blocks, size, input, keep.data(), fisher.data(),
                             packed, damping, group, most, output.data(), used.data()};
    nb::gil_scoped_release release;
    for_each_block(blocks, threads, chosen.variant->solver_scratch(size),
                   [&](Index block, std::byte* scratch) { kernel(problem, block, scratch); });
}

/// kernel(input, keep, fisher, damping, output, used, threads)
template <class T>
void bind_with_input(nb::module_& m, const char* name, Kernel<Problem<T>> Solvers<T>::* kernel) {
    const auto call = [kernel](Array<const T, 2> input, Array<const bool, 2> keep, Fisher<T> fisher,
                               double damping, Array<T, 2> output, Array<double, 1> used, int threads) {
        require(input.shape(0) == keep.shape(0) && input.shape(1) == keep.shape(1));
        solve<T>(solvers<T>().*kernel, input.data(), keep, fisher, damping, output, used, threads);
    };
    m.def(name, call, "input"_a.noconvert(), "keep"_a.noconvert(), "fisher"_a.noconvert(), "damping"_a,
          "output"_a.noconvert(), "used"_a.noconvert(), "threads"_a);
}

template <class T>
void bind(nb::module_& m) {
    const auto cap_scores = [](Array<const T, 2> input, Array<const bool, 2> keep, Fisher<T> fisher, double damping,
                               Index group, Index most, Array<T, 2> output, Array<double, 1> used, int threads) {
        require(input.shape(0) == keep.shape(0) && input.shape(1) == keep.shape(1));
        require(group >= 0 && most >= 0 && most <= group && (!group || Index(keep.shape(1)) % group == 0));
        solve<T>(solvers<T>().cap_scores, input.data(), keep, fisher, damping, output, used, threads, group, most);
    };
    m.def("cap_scores", cap_scores, "input"_a.noconvert(), "keep"_a.noconvert(), "fisher"_a.noconvert(), "damping"_a,
          "group"_a, "most"_a, "output"_a.noconvert(), "used"_a.noconvert(), "threads"_a);
    bind_with_input<T>(m, "solve_kept", &Solvers<T>::solve_kept);
    bind_with_input<T>(m, "compensate", &Solvers<T>::compensate);
    bind_with_input<T>(m, "loss_increase", &Solvers<T>::loss_increase);
    const auto inverse_diagonal = [](Array<const bool, 2> keep, Fisher<T> fisher, double damping,
                                     Array<T, 2> output, Array<double, 1> used, int threads) {
        solve<T>(solvers<T>().inverse_diagonal, nullptr, keep, fisher, damping, output, used, threads);
    };
    m.def("inverse_diagonal", inverse_diagonal, "keep"_a.noconvert(), "fisher"_a.noconvert(), "damping"_a,
          "output"_a.noconvert(), "used"_a.noconvert(), "threads"_a);
}

/// `Given` is what numpy can carry: float, or the bits of bfloat16 as int16.
template <class G, class Given>
void accumulate(Kernel<Accumulation<G>> Variant::* kernel, const Array<float, 2>& fisher, Index size,
                const Array<const Given, 2>& gradients, int threads) {
    const Index blocks = fisher.shape(0), samples = gradients.shape(0), weights = gradients.shape(1);
    require(size > 0 && Index(fisher.shape(1)) == size * (size + 1) / 2);
    require((blocks - 1) * size < weights && weights <= blocks * size);
    const auto* numbers = reinterpret_cast<const G*>(gradients.data());
    const Accumulation<G> problem{blocks, size, weights, samples, numbers, fisher.data()};
    nb::gil_scoped_release release;
    for_each_block(blocks, threads, chosen.variant->accumulate_scratch(size),
                   [&](Index block, std::byte* scratch) { (chosen.variant->*kernel)(problem, block, scratch); });
}

template <class G, class Given>
void bind_accumulate(nb::module_& m, Kernel<Accumulation<G>> Variant::* kernel) {
    const auto call = [kernel](Array<float, 2> fisher, Index size, Array<const Given, 2> gradients, int threads) {
        accumulate<G, Given>(kernel, fisher, size, gradients, threads);
    };
    m.def("accumulate", call, "fisher"_a.noconvert(), "size"_a, "gradients"_a.noconvert(), "threads"_a);
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
    bind_sparse(m, *chosen.sparse);
    bind_accumulate<float, float>(m, &Variant::accumulate_float32);
    bind_accumulate<Bf16, std::int16_t>(m, &Variant::accumulate_bfloat16);
}

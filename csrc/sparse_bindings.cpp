// PackedMatrix and Encoder for Python: shapes are checked, arrays from outside too, and the GIL is released.
#include "sparse_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <type_traits>

#include "encoder.h"
#include "layers.h"
#include "pack.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace secateur {

namespace {

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;

void require(bool fits) {
    if (!fits) throw nb::value_error("the shapes of the arrays do not agree");
}

void require_sound(const std::string& wrong) {
    if (!wrong.empty()) throw nb::value_error(wrong.c_str());
}

Activation activation_named(const std::string& name) {
    if (name == "none") return Activation::none;
    if (name == "relu") return Activation::relu;
    if (name == "gelu") return Activation::gelu;
    if (name == "silu") return Activation::silu;
    throw nb::value_error("an activation is none, relu, gelu or silu");
}

PackedArrays pack_dense(Array<const float, 2> weight, std::optional<Array<const float, 1>> bias, Index width, bool share) {
    const Index rows = weight.shape(0), columns = weight.shape(1);
    require(rows > 0 && columns > 0 && width > 0 && width * panel <= 65536 && (!bias || Index(bias->shape(0)) == rows));
    return pack(weight.data(), bias ? bias->data() : nullptr, rows, columns, width, share);
}

template <class Given>
auto copied(const Given& array) {
    return std::vector<std::remove_const_t<typename Given::Scalar>>(array.data(), array.data() + array.size());
}

PackedArrays packed_from(Index rows, Index columns, Index width, Array<const std::int32_t, 1> tiles,
                         Array<const float, 1> values, Array<const std::uint16_t, 1> offsets, Array<const float, 1> bias) {
    PackedArrays packed{rows, columns, width, copied(tiles), copied(values), copied(offsets), copied(bias)};
    require_sound(check_packed(packed));
    return packed;
}

/// A read-only numpy array on memory that belongs to `owner`.
template <class T>
nb::ndarray<nb::numpy, const T, nb::ndim<1>> shown(const std::vector<T>& numbers, nb::handle owner) {
    return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(numbers.data(), {numbers.size()}, owner);
}

template <class T>
void bind_array(nb::class_<PackedArrays>& type, const char* name, std::vector<T> PackedArrays::* numbers) {
    type.def_prop_ro(name, [numbers](nb::handle self) { return shown(nb::cast<PackedArrays&>(self).*numbers, self); });
}

/// x (panels, columns, 64) → y (panels, padded rows, 64), every panel with so many groups.
void multiply_panels(const SparseVariant& variant, const PackedArrays& packed, Array<const float, 3> x, Array<float, 3> y,
                     Index groups, bool add, const std::string& activation) {
    const PackedMatrix w = packed.view();
    require(x.shape(0) == y.shape(0) && Index(x.shape(2)) == panel && Index(y.shape(2)) == panel);
    require(Index(x.shape(1)) == w.columns && Index(y.shape(1)) == w.padded_rows());
    require(groups >= 1 && groups <= panel_groups);
    const Activation f = activation_named(activation);
    nb::gil_scoped_release release;
    for (std::size_t p = 0; p < x.shape(0); ++p)
        variant.product(w, x.data() + p * w.columns * panel, y.data() + p * w.padded_rows() * panel, groups, add, f);
}

void linear(const SparseVariant& variant, const PackedArrays& weight, Array<const float, 2> inputs, Array<float, 2> outputs,
            const std::string& activation, int threads) {
    require(inputs.shape(0) == outputs.shape(0) && threads > 0);
    require(Index(inputs.shape(1)) == weight.columns && Index(outputs.shape(1)) == weight.rows);
    const Activation f = activation_named(activation);
    nb::gil_scoped_release release;
    run_linear(weight, variant, inputs.data(), inputs.shape(0), outputs.data(), f, threads);
}

/// `shape`: kernel, stride, padding and dilation, each down and across.
void convolution(const SparseVariant& variant, const PackedArrays& weight, const std::vector<Index>& shape,
                 Array<const float, 4> inputs, std::optional<Array<const float, 4>> added, Array<float, 4> outputs,
                 const std::string& activation, int threads) {
    require(shape.size() == 8 && threads > 0);
    const Convolution c{Index(inputs.shape(1)), shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], shape[7]};
    for (int i = 0; i < 8; ++i) require(shape[i] >= (i == 4 || i == 5 ? 0 : 1) && shape[i] <= 65536);
    const Images images{inputs.data(), Index(inputs.shape(0)), Index(inputs.shape(2)), Index(inputs.shape(3))};
    require(images.height + 2 * c.padding_y > c.dilation_y * (c.kernel_height - 1));
    require(images.width + 2 * c.padding_x > c.dilation_x * (c.kernel_width - 1));
    require(c.channels * c.kernel_height * c.kernel_width == weight.columns);
    const Index wanted[4] = {images.count, weight.rows, c.out_height(images.height), c.out_width(images.width)};
    for (int i = 0; i < 4; ++i) require(Index(outputs.shape(i)) == wanted[i] && (!added || Index(added->shape(i)) == wanted[i]));
    const Activation f = activation_named(activation);
    nb::gil_scoped_release release;
    run_convolution(weight, c, variant, images, added ? added->data() : nullptr, outputs.data(), f, threads);
}

void max_pool(Array<const float, 3> planes, Index kernel, Index stride, Index padding, Array<float, 3> outputs, int threads) {
    require(kernel > 0 && stride > 0 && padding >= 0 && 2 * padding <= kernel && threads > 0);
    const Images images{planes.data(), Index(planes.shape(0)), Index(planes.shape(1)), Index(planes.shape(2))};
    const Pool pool{kernel, stride, padding};
    require(images.height + 2 * padding >= kernel && images.width + 2 * padding >= kernel);
    require(outputs.shape(0) == planes.shape(0) && Index(outputs.shape(1)) == pool.out_length(images.height));
    require(Index(outputs.shape(2)) == pool.out_length(images.width));
    nb::gil_scoped_release release;
    run_max_pool(images, pool, outputs.data(), threads);
}

void bind_packed(nb::module_& m, const SparseVariant& variant) {
    nb::class_<PackedArrays> type(m, "PackedMatrix", "A sparse matrix as the kernels read it; see csrc/sparse.h.");
    type.def_static("pack", pack_dense, "weight"_a.noconvert(), "bias"_a.none(), "width"_a, "share"_a)
        .def_static("from_arrays", packed_from, "rows"_a, "columns"_a, "width"_a, "tiles"_a.noconvert(),
                    "values"_a.noconvert(), "offsets"_a.noconvert(), "bias"_a.noconvert())
        .def_ro("rows", &PackedArrays::rows)
        .def_ro("columns", &PackedArrays::columns)
        .def_ro("width", &PackedArrays::width);
    bind_array(type, "tiles", &PackedArrays::tiles);
    bind_array(type, "values", &PackedArrays::values);
    bind_array(type, "offsets", &PackedArrays::offsets);
    bind_array(type, "bias", &PackedArrays::bias);
    const auto multiply = [&variant](const PackedArrays& packed, Array<const float, 3> x, Array<float, 3> y, Index groups,
                                     bool add, const std::string& activation) {
        multiply_panels(variant, packed, x, y, groups, add, activation);
    };
    const auto run_linear = [&variant](const PackedArrays& weight, Array<const float, 2> inputs, Array<float, 2> outputs,
                                       const std::string& activation, int threads) {
        linear(variant, weight, inputs, outputs, activation, threads);
    };
    const auto run_convolution = [&variant](const PackedArrays& weight, const std::vector<Index>& shape,
                                            Array<const float, 4> inputs, std::optional<Array<const float, 4>> added,
                                            Array<float, 4> outputs, const std::string& activation, int threads) {
        convolution(variant, weight, shape, inputs, added, outputs, activation, threads);
    };
    type.def("linear", run_linear, "inputs"_a.noconvert(), "outputs"_a.noconvert(), "activation"_a, "threads"_a);
    type.def("convolution", run_convolution, "shape"_a, "inputs"_a.noconvert(), "added"_a.noconvert().none(),
             "outputs"_a.noconvert(), "activation"_a, "threads"_a);
    type.def("multiply_panels", multiply, "x"_a.noconvert(), "y"_a.noconvert(), "groups"_a, "add"_a, "activation"_a);
}


Encoder* make_encoder(std::vector<Index> image, Index prefix, Index heads, Index head_size, const std::string& activation,
                      const PackedArrays& patches, Array<const float, 2> start) {
    require(image.size() == 5 && start.shape(0) == std::size_t(patches.rows));
    auto encoder = std::make_unique<Encoder>(Encoder{image[0], image[1], image[2], image[3], image[4], prefix, heads,
                                                     head_size, activation_named(activation), patches, copied(start), {}});
    require_sound(check_encoder(*encoder));
    return encoder.release();
}

void add_block(Encoder& encoder, const PackedArrays& qkv, const PackedArrays& projection, const PackedArrays& up,
               const PackedArrays& down, float epsilon_attention, float epsilon_mlp) {
    encoder.blocks.push_back({qkv, projection, up, down, epsilon_attention, epsilon_mlp});
    const std::string wrong = check_encoder(encoder);
    if (!wrong.empty()) encoder.blocks.pop_back();    // what stays has been checked
    require_sound(wrong);
}

/// What `make` was given, so that an encoder can be written to a file.
nb::dict parts_of(const Encoder& e) {
    const char* const names[] = {"none", "relu", "gelu", "silu"};
    nb::dict parts;
    parts["image"] = nb::make_tuple(e.channels, e.height, e.width, e.patch_height, e.patch_width);
    parts["prefix"] = e.prefix;
    parts["heads"] = e.heads;
    parts["head_size"] = e.head_size;
    parts["activation"] = names[static_cast<int>(e.activation)];
    parts["patches"] = e.patches;
    nb::list blocks;    // copies: the encoder may grow
    for (const EncoderBlock& b : e.blocks)
        blocks.append(nb::make_tuple(b.qkv, b.projection, b.up, b.down, b.epsilon_attention, b.epsilon_mlp));
    parts["blocks"] = blocks;
    return parts;
}

void bind_encoder(nb::module_& m, const SparseVariant& variant) {
    const auto run = [&variant](const Encoder& encoder, Array<const float, 4> images, Array<float, 3> outputs, int threads) {
        const Index count = images.shape(0), kept = outputs.shape(1);
        require(Index(images.shape(1)) == encoder.channels && Index(images.shape(2)) == encoder.height);
        require(Index(images.shape(3)) == encoder.width && Index(outputs.shape(0)) == count);
        require(kept >= 1 && kept <= encoder.tokens() && Index(outputs.shape(2)) == encoder.features() && threads > 0);
        nb::gil_scoped_release release;
        encode(encoder, variant, images.data(), count, outputs.data(), kept, threads);
    };
    nb::class_<Encoder>(m, "Encoder", "A vision transformer from images to tokens; see csrc/encoder.h.")
        .def_static("make", make_encoder, nb::rv_policy::take_ownership, "image"_a, "prefix"_a, "heads"_a, "head_size"_a,
                    "activation"_a, "patches"_a, "start"_a.noconvert())
        .def("add_block", add_block, "qkv"_a, "projection"_a, "up"_a, "down"_a, "epsilon_attention"_a, "epsilon_mlp"_a)
        .def("run", run, "images"_a.noconvert(), "outputs"_a.noconvert(), "threads"_a)
        .def_prop_ro("image", [](const Encoder& e) { return nb::make_tuple(e.channels, e.height, e.width); })
        .def_prop_ro("parts", parts_of)
        .def_prop_ro("start", [](nb::handle self) { return shown(nb::cast<Encoder&>(self).start, self); })
        .def_prop_ro("tokens", &Encoder::tokens)
        .def_prop_ro("features", &Encoder::features);
}

}    // namespace

void bind_sparse(nb::module_& m, const SparseVariant& variant) {
    bind_packed(m, variant);
    bind_encoder(m, variant);
    const auto multiply_adds = [&variant](Index rounds) {
        nb::gil_scoped_release release;
        return variant.probe_multiply_adds(rounds);
    };
    const auto loads = [&variant](Index rounds) {
        nb::gil_scoped_release release;
        return variant.probe_loads(rounds);
    };
    m.def("probe_multiply_adds", multiply_adds, "rounds"_a, "Multiply-adds from registers; how many numbers.");
    m.def("probe_loads", loads, "rounds"_a, "Loads from the L1 cache; how many vectors.");
    m.def("lanes", [&variant] { return variant.lanes; }, "Numbers in a vector.");
    m.def("max_pool", max_pool, "planes"_a.noconvert(), "kernel"_a, "stride"_a, "padding"_a, "outputs"_a.noconvert(),
          "threads"_a);
}

}    // namespace secateur

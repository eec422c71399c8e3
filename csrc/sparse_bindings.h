// The Python classes of the sparse runtime.
#pragma once
#include <nanobind/nanobind.h>

#include "sparse.h"

namespace secateur {

void bind_sparse(nanobind::module_& m, const SparseVariant& variant);

}    // namespace secateur

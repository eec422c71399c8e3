// The sparse kernels of sparse.h for one instruction set; CMakeLists.txt compiles this file once per variant.
#include "attention.h"
#include "layouts.h"
#include "probes.h"
#include "products.h"

namespace secateur {
namespace SECATEUR_VARIANT {

extern const SparseVariant sparse_variant;
const SparseVariant sparse_variant = {product, block_product, normalise, attend, attention_scratch, transpose,
                                      gather_runs, probe_multiply_adds, probe_loads, lanes};

}    // namespace SECATEUR_VARIANT
}    // namespace secateur

// Which variants this machine can run, and the one in use.
#pragma once
#include <string>
#include <vector>

#include "sparse.h"

namespace secateur {

struct Choice {
    std::string name;
    const Variant* variant;
    const SparseVariant* sparse;
};

/// Supported variants, slowest first; "portable" is always one of them.
std::vector<Choice> supported_variants();

/// The fastest supported variant, or the one SECATEUR_ISA names; throws std::runtime_error where that cannot run.
Choice choose_variant();

}    // namespace secateur

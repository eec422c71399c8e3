// Packed matrices that own their arrays: made from dense ones, and checked where they come from a file.
#pragma once
#include <string>
#include <vector>

#include "sparse.h"

namespace secateur {

/// The arrays of a PackedMatrix; see there for what they mean.
struct PackedArrays {
    Index rows = 0, columns = 0, width = 0;
    std::vector<std::int32_t> tiles;
    std::vector<float> values;
    std::vector<std::uint16_t> offsets;
    std::vector<float> bias;

    PackedMatrix view() const;
};

/// `weight` (rows, columns) without its zeros. `bias` may be null; `share` looks for columns that two rows have in common.
PackedArrays pack(const float* weight, const float* bias, Index rows, Index columns, Index width, bool share);

/// What is wrong with these arrays, or nothing: after that no kernel reads or writes outside them and its panels.
std::string check_packed(const PackedArrays& packed);

}    // namespace secateur

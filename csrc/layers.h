// Single layers on torch's own layouts: linear on tokens, convolution on pixels. What is gathered for a block of columns
// goes straight into the L1 cache, so no convolution is ever laid out as a matrix.
#pragma once
#include "pack.h"

namespace secateur {

/// outputs (tokens, rows) = f(inputs (tokens, columns) Wᵀ + b).
void run_linear(const PackedArrays& weight, const SparseVariant& variant, const float* inputs, Index tokens, float* outputs,
                Activation f, int threads);

/// A convolution of images (images, channels, height, width) in one group, padded with zeros.
struct Convolution {
    Index channels, kernel_height, kernel_width, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;

    Index out_height(Index height) const;
    Index out_width(Index width) const;
};

struct Images {
    const float* pixels;
    Index count, height, width;
};

/// outputs (images, rows, out_height, out_width) = f(convolution + b), or f(convolution + b + added) where `added`, of
/// the same shape, is not null. The columns of the weight are (channels, kernel_height, kernel_width).
void run_convolution(const PackedArrays& weight, const Convolution& shape, const SparseVariant& variant, const Images& images,
                     const float* added, float* outputs, Activation f, int threads);

/// The largest of squares of numbers; what is outside an image counts for nothing.
struct Pool {
    Index kernel, stride, padding;    // padding ≤ kernel / 2

    Index out_length(Index length) const { return (length + 2 * padding - kernel) / stride + 1; }
};

/// Of `images.count` planes.
void run_max_pool(const Images& images, const Pool& pool, float* outputs, int threads);

}    // namespace secateur

// A vision transformer's encoder: images in, tokens after the last block out.
//
// Layer norms carry no weights of their own, attention no scale and blocks no layer scale: who makes an Encoder has
// multiplied them into the matrices, and log₂ e into the queries.
#pragma once
#include "pack.h"

namespace secateur {

struct EncoderBlock {
    PackedArrays qkv, projection, up, down;
    float epsilon_attention, epsilon_mlp;    // of the layer norms
};

struct Encoder {
    Index channels, height, width, patch_height, patch_width;    // of an image, and of its patches
    Index prefix;                   // tokens before those of the patches
    Index heads, head_size;
    Activation activation;
    PackedArrays patches;           // (features, channels · patch_height · patch_width), without a bias
    std::vector<float> start;       // (features, tokens): what is added to the patches, or stands before them
    std::vector<EncoderBlock> blocks;

    Index features() const { return patches.rows; }
    Index tokens() const { return prefix + (height / patch_height) * (width / patch_width); }
};

/// What is wrong with an encoder, or nothing: after that `encode` stays within its arrays.
std::string check_encoder(const Encoder& encoder);

/// outputs (count, kept, features): the first `kept` tokens of each of the images (count, channels, height, width).
void encode(const Encoder& encoder, const SparseVariant& variant, const float* images, Index count, float* outputs,
            Index kept, int threads);

}    // namespace secateur

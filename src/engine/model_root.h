// What cached blocks are good for: a fingerprint of everything besides its tokens that decides a block's bytes.
#pragma once

#include <span>
#include <vector>

#include "base/digest.h"
#include "kernels/kernels.h"
#include "models/blocks.h"
#include "weights/gguf.h"

namespace pagoda::engine {

// Of the file (size, metadata with tokenizer and rope, tensor table, and samples of every tensor, so that two fine-tunes differ), the
// arithmetic, the layout id, every group's formats and window, and the numerics revision. The first 128 bits of a SHA-256.
// Cost: reads 3 KiB of each tensor.
Hash128 model_root(const weights::Gguf& gguf, std::span<const models::AttentionGroup> groups,
                   kernels::Arithmetic arithmetic);

// Everything but the files that decides a block's bytes, for digests: arithmetic, layout id, groups with formats and windows, numerics
// revision. Together with a digest of the files it is what tiers know a model by.
std::vector<std::byte> describe_computation(std::span<const models::AttentionGroup> groups,
                                            kernels::Arithmetic arithmetic);

// The two together: what tiers and exported sessions know a model by.
Sha256 model_identity(std::vector<std::byte> computation, const Sha256& files);

}  // namespace pagoda::engine

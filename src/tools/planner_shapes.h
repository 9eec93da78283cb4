// Public shapes: the numbers of well-known models by slug ("llama-2-7b"), so that `plan` works without a file.
// Plain data.     Source: each model's config.json as its makers publish it, by repository name; `published_parameters` is the count
// of the published weights, which planner_shapes_test.cc computes again from the shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tools/model_costs.h"
#include "weights/model_config.h"

namespace pagoda::tools {

struct PublicShape {
  enum class Head : uint8_t { kOwn, kTied };                         // tied: the embedding is the output projection
  enum class Extras : uint8_t { kNone, kQkvBias, kQkNorm, kGemma };  // kGemma: Q and K norms, four norms a layer
  std::string_view slug;
  std::string_view source;  // repository of the config.json
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int embed_dim = 0;
  int ffn_dim = 0;
  int vocab_size = 0;
  int context_tokens = 0;
  Head head = Head::kOwn;
  Extras extras = Extras::kNone;
  int window_tokens = 0;  // of the local layers; 0: there are none
  int global_every = 0;   // every so many layers one sees everything; 0: none does where there is a window
  int64_t published_parameters = 0;
};

std::span<const PublicShape> public_shapes();
const PublicShape* find_shape(std::string_view slug);  // whatever its case; nullptr if there is none
// The slugs that look most like `text`, at most five, the likest first.
std::vector<std::string> near_shapes(std::string_view text);

weights::ModelConfig config_of(const PublicShape& shape);
// Every matrix of the shape in `type`, or in what llama.cpp's quantizer takes instead where a row is no whole number of its blocks.
std::vector<WeightTensor> tensors_of(const PublicShape& shape, tensor::DType type);

}  // namespace pagoda::tools

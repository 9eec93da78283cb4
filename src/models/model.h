// Model: one family's weights and the order of its blocks. A family is one file: it names its tensors (load) and calls Forward's
// blocks in order (forward). Immutable after loading; one Model may serve many executors.
#pragma once

#include <memory>
#include <vector>

#include "models/blocks.h"
#include "models/forward.h"
#include "models/loader.h"

namespace pagoda::models {

class Model {
 public:
  virtual ~Model() = default;

  // Leaves the logits of the batch's sampling rows in the workspace.
  virtual void forward(Forward& step) const = 0;

  const weights::ModelConfig& config() const { return weights_.config; }
  const std::vector<AttentionGroup>& groups() const { return weights_.groups; }
  size_t weight_bytes() const { return weights_.arena.taken_bytes(); }

 protected:
  explicit Model(LoadedWeights weights) : weights_(std::move(weights)) {}

 private:
  LoadedWeights weights_;
};

// Reads the file's weights into a Model of its family.  `kv_format` is a name of kv_plan.h.
// Errors: unknown architecture (lists what is supported), missing or misshapen tensors (named), unsupported types, memory.
Result<std::unique_ptr<Model>> load_model(const weights::Gguf& gguf, std::string_view kv_format, ThreadPool& pool);

}  // namespace pagoda::models

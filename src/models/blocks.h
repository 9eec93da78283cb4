// The parts that decoder models are made of: plain data over repacked weights. What they compute is forward.h.
// Shapes are of the weights, [outputs, inputs]; d = head_dim.
#pragma once

#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "kv/layout.h"
#include "models/rope.h"
#include "tensor/panel.h"

namespace pagoda::models {

struct Linear {
  tensor::PanelMatrix weight;   // [n_outputs, n_inputs]
  const float* bias = nullptr;  // [n_outputs], or none
};

struct Norm {
  const float* weight = nullptr;  // [n]; none: the norm is absent
  float eps = 0;
  explicit operator bool() const { return weight != nullptr; }
};

struct Attention {
  Linear q;     // [n_heads d, embed]
  Linear k, v;  // [n_kv_heads d, embed]
  Linear o;     // [embed, n_heads d]
  Norm q_norm;  // [d] over each head, before rope; or absent
  Norm k_norm;
  int layer = 0;           // of the model
  int group = 0;           // attention group: which block table
  int layer_in_group = 0;  // where in the group's blocks
  RopeTable::Layers rope = RopeTable::Layers::kGlobal;
};

struct GatedMlp {
  Linear gate, up;  // [ffn, embed]
  Linear down;      // [embed, ffn]
  kernels::Activation activation = kernels::Activation::kSilu;
};

// Layers that keep the same tokens: one block table, one size class, one work list.
struct AttentionGroup {
  int window = 0;           // tokens a query sees, itself included; 0 = all
  std::vector<int> layers;  // of the model, ascending
  kv::GroupLayout layout;
};

}  // namespace pagoda::models

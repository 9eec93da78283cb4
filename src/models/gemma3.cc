// Gemma 3 (text): scaled embeddings, QK norm, norms before and after each block, tanh-GELU gate; 5 of 6 layers see a sliding window
// and have a rope base of their own. Source: Gemma Team 2025 (Gemma 3 technical report).
#include "models/families.h"

namespace pagoda::models {
namespace {

class Gemma3 final : public Model {
 public:
  struct Layer {
    Norm attention_norm, post_attention_norm;
    Attention attention;
    Norm mlp_norm, post_mlp_norm;
    GatedMlp mlp;
  };
  struct Parts {
    Linear embedding;  // [vocab, embed], also the output
    std::vector<Layer> layers;
    Norm output_norm;
    Linear output;
  };

  Gemma3(LoadedWeights weights, Parts parts) : Model(std::move(weights)), parts_(std::move(parts)) {}

  void forward(Forward& step) const override {
    step.embed(parts_.embedding, config().embedding_scale);
    for (const Layer& layer : parts_.layers) {
      step.attention(layer.attention_norm, layer.attention, layer.post_attention_norm);
      step.mlp(layer.mlp_norm, layer.mlp, layer.post_mlp_norm);
    }
    step.head(parts_.output_norm, parts_.output, config().final_logit_softcap);
  }

 private:
  Parts parts_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_gemma3(Loader& loader) {
  Gemma3::Parts parts;
  TRY_ASSIGN(parts.embedding, loader.embedding());
  for (int i = 0; i < loader.config().n_layers; ++i) {
    Gemma3::Layer& layer = parts.layers.emplace_back();
    TRY_ASSIGN(layer.attention_norm, loader.norm(layer_tensor(i, "attn_norm.weight")));
    TRY_ASSIGN(layer.attention, loader.attention(i, {.qkv_bias = Part::kAbsent, .qk_norm = Part::kRequired}));
    TRY_ASSIGN(layer.post_attention_norm, loader.norm(layer_tensor(i, "post_attention_norm.weight")));
    TRY_ASSIGN(layer.mlp_norm, loader.norm(layer_tensor(i, "ffn_norm.weight")));
    TRY_ASSIGN(layer.mlp, loader.gated_mlp(i, kernels::Activation::kGeluTanh));
    TRY_ASSIGN(layer.post_mlp_norm, loader.norm(layer_tensor(i, "post_ffw_norm.weight")));
  }
  TRY_ASSIGN(parts.output_norm, loader.norm("output_norm.weight"));
  TRY_ASSIGN(parts.output, loader.output(parts.embedding));
  TRY_ASSIGN(LoadedWeights weights, loader.finish());
  return std::make_unique<Gemma3>(std::move(weights), std::move(parts));
}

}  // namespace pagoda::models

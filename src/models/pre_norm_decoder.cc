#include "models/families.h"

namespace pagoda::models {
namespace {

class PreNormDecoder final : public Model {
 public:
  struct Layer {
    Norm attention_norm;
    Attention attention;
    Norm mlp_norm;
    GatedMlp mlp;
  };
  struct Parts {
    Linear embedding;  // [vocab, embed]
    std::vector<Layer> layers;
    Norm output_norm;
    Linear output;  // [vocab, embed]; the embedding itself where the file has no output
  };

  PreNormDecoder(LoadedWeights weights, Parts parts) : Model(std::move(weights)), parts_(std::move(parts)) {}

  void forward(Forward& step) const override {
    step.embed(parts_.embedding, config().embedding_scale);
    for (const Layer& layer : parts_.layers) {
      step.attention(layer.attention_norm, layer.attention, Norm{});
      step.mlp(layer.mlp_norm, layer.mlp, Norm{});
    }
    step.head(parts_.output_norm, parts_.output, config().final_logit_softcap);
  }

 private:
  Parts parts_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_pre_norm_decoder(Loader& loader, AttentionParts attention) {
  PreNormDecoder::Parts parts;
  TRY_ASSIGN(parts.embedding, loader.embedding());
  for (int i = 0; i < loader.config().n_layers; ++i) {
    PreNormDecoder::Layer& layer = parts.layers.emplace_back();
    TRY_ASSIGN(layer.attention_norm, loader.norm(layer_tensor(i, "attn_norm.weight")));
    TRY_ASSIGN(layer.attention, loader.attention(i, attention));
    TRY_ASSIGN(layer.mlp_norm, loader.norm(layer_tensor(i, "ffn_norm.weight")));
    TRY_ASSIGN(layer.mlp, loader.gated_mlp(i, kernels::Activation::kSilu));
  }
  TRY_ASSIGN(parts.output_norm, loader.norm("output_norm.weight"));
  TRY_ASSIGN(parts.output, loader.output(parts.embedding));
  TRY_ASSIGN(LoadedWeights weights, loader.finish());
  return std::make_unique<PreNormDecoder>(std::move(weights), std::move(parts));
}

}  // namespace pagoda::models

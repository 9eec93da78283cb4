// A new family is one line here and one file beside it (docs/adding_a_model.md).
#include "models/families.h"
#include "models/kv_plan.h"

namespace pagoda::models {
namespace {

using FamilyLoader = Result<std::unique_ptr<Model>> (*)(Loader&);

struct Family {
  weights::Architecture architecture;
  FamilyLoader load;
};
constexpr Family kFamilies[] = {
    {weights::Architecture::kLlama, load_llama},
    {weights::Architecture::kQwen2, load_qwen2},
    {weights::Architecture::kQwen3, load_qwen3},
    {weights::Architecture::kGemma3, load_gemma3},
};

}  // namespace

Result<std::unique_ptr<Model>> load_model(const weights::Gguf& gguf, std::string_view kv_format, ThreadPool& pool) {
  TRY_ASSIGN(weights::ModelConfig config, weights::read_model_config(gguf));
  TRY_ASSIGN(std::vector<AttentionGroup> groups, plan_groups(gguf, config, kv_format));
  for (const Family& family : kFamilies) {
    if (family.architecture != config.architecture) continue;
    Loader loader(gguf, std::move(config), std::move(groups), pool);
    return family.load(loader);
  }
  return fail(ErrorCode::kUnsupported, "architecture \"{}\" has no loader", to_string(config.architecture));
}

}  // namespace pagoda::models

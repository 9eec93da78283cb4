#include "serve/model_names.h"

namespace pagoda::serve {

Result<engine::ModelInfo> resolve_model(const std::vector<engine::ModelInfo>& loaded, std::string_view asked,
                                        ModelNames policy) {
  for (const engine::ModelInfo& model : loaded) {
    if (model.name == asked) return model;
  }
  if (loaded.size() == 1 && (policy == ModelNames::kAny || asked.empty())) return loaded.front();
  if (loaded.empty()) return fail(Error{ErrorCode::kUnavailable, "no model is loaded", "model"});
  std::string names;
  for (const engine::ModelInfo& model : loaded) names += (names.empty() ? "" : ", ") + model.name;
  if (asked.empty())
    return fail(Error{ErrorCode::kInvalidArgument, "model is missing; this server has " + names, "model"});
  return fail(Error{ErrorCode::kNotFound, fmt::format("the model {} does not exist; this server has {}", asked, names),
                    "model"});
}

}  // namespace pagoda::serve

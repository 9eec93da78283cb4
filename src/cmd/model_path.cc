#include "cmd/model_path.h"

#include <toml++/toml.h>
#include <cstdlib>

#include "model_recipes.h"

namespace pagoda::cmd {
namespace fs = std::filesystem;

namespace {

fs::path home_cache() {
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : ".") / ".cache";
}

}  // namespace

fs::path model_folder() {
  if (const char* folder = std::getenv("PAGODA_MODELS"); folder != nullptr && *folder != '\0') return folder;
  return home_cache() / "pagoda/models";
}

engine::KvProbeSources probe_sources() {
  const char* folder = std::getenv("XDG_CACHE_HOME");  // to be ignored where it is not absolute
  const fs::path cache = folder != nullptr && *folder == '/' ? fs::path(folder) : home_cache();
  return {.folder = cache / "pagoda/kv-probes", .shipped = kKvProbes};
}

Result<fs::path> find_model(const std::string& model) {
  std::error_code ignored;
  if (fs::is_regular_file(model, ignored)) return fs::path(model);
  if (model.find('/') != std::string::npos && fs::exists(model, ignored))
    return fail(ErrorCode::kInvalidArgument, "{} is no regular file, which a model must be", model);
  if (model.find('/') == std::string::npos) {
    const toml::parse_result recipes = toml::parse(std::string_view(kModelRecipes));
    if (const auto file = recipes["models"][model]["file"].value<std::string>()) {
      const fs::path path = model_folder() / *file;
      if (fs::is_regular_file(path, ignored)) return path;
      return fail(ErrorCode::kNotFound, "model {} is not in {} yet: scripts/fetch_model {} gets it", model,
                  model_folder().string(), model);
    }
    for (const std::string& name : {model, model + ".gguf"}) {
      if (fs::is_regular_file(model_folder() / name, ignored)) return model_folder() / name;
    }
  }
  return fail(ErrorCode::kNotFound,
              "no model {}: there is no such file, no such name in {}, and no recipe of that name", model,
              model_folder().string());
}

}  // namespace pagoda::cmd

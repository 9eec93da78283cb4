# model_recipes.h: models/recipes.toml and models/kv_probes.txt as strings, so that `pagoda serve NAME` knows the names and what KV formats
# those models bear (src/cmd includes it and parses it).
#   namespace pagoda::cmd { inline constexpr std::string_view kModelRecipes, kKvProbes; }
set(MODEL_RECIPES ${CMAKE_SOURCE_DIR}/models/recipes.toml)
set(KV_PROBES ${CMAKE_SOURCE_DIR}/models/kv_probes.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MODEL_RECIPES} ${KV_PROBES})
file(READ ${MODEL_RECIPES} recipes)
file(READ ${KV_PROBES} kv_probes)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/model_recipes.h @ONLY CONTENT [[
// Written by cmake/model_recipes.cmake from models/.
#pragma once
#include <string_view>
namespace pagoda::cmd {
inline constexpr std::string_view kModelRecipes = R"toml(@recipes@)toml";
inline constexpr std::string_view kKvProbes = R"text(@kv_probes@)text";
}  // namespace pagoda::cmd
]])
add_library(model_recipes INTERFACE)
target_include_directories(model_recipes INTERFACE ${CMAKE_BINARY_DIR}/generated)

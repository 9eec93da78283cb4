# model_recipes.h: models/recipes.toml as a string, so that `pagoda serve NAME` knows the names (src/cmd includes it and parses it).
#   namespace pagoda::cmd { inline constexpr std::string_view kModelRecipes; }
set(MODEL_RECIPES ${CMAKE_SOURCE_DIR}/models/recipes.toml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MODEL_RECIPES})
file(READ ${MODEL_RECIPES} recipes)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/model_recipes.h @ONLY CONTENT [[
// Written by cmake/model_recipes.cmake from models/recipes.toml.
#pragma once
#include <string_view>
namespace pagoda::cmd {
inline constexpr std::string_view kModelRecipes = R"toml(@recipes@)toml";
}  // namespace pagoda::cmd
]])
add_library(model_recipes INTERFACE)
target_include_directories(model_recipes INTERFACE ${CMAKE_BINARY_DIR}/generated)

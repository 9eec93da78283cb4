// For the engine's tests: the generated models of tests/golden/tiny_models.py, made beside the test program if they are not there yet.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/token_id.h"
#include "engine/config.h"

namespace pagoda::engine {

// Path of NAME.gguf ("tiny-llama", ...).
inline std::filesystem::path tiny_model(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "tiny_models";
  const std::string command =
      "python3 '" PAGODA_SOURCE_DIR "/tests/golden/tiny_models.py' '" + folder.string() + "' " + name + " >/dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return folder / (name + ".gguf");
}

// One thread, best instruction set, a quiet log.
inline EngineConfig tiny_config(const std::filesystem::path& model) {
  start_log("error");
  EngineConfig config;
  config.model_path = model;
  config.isa = kernels::best_isa();
  config.n_threads = 1;
  config.kv_memory_bytes = 64 << 20;
  return config;
}

// Below every generated model's vocabulary size, and never one of their special tokens.
inline std::vector<TokenId> random_tokens(uint32_t seed, int n) {
  std::minstd_rand random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.emplace_back(10 + static_cast<int32_t>(random() % 250));
  return tokens;
}

}  // namespace pagoda::engine

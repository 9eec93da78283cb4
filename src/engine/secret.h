// The secret that cache namespaces are made with (intake.h). Servers that share tiers share it too.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>

#include "base/error.h"

namespace pagoda::engine {

using Secret = std::array<std::byte, 32>;

Secret random_secret();

// The file's 32 bytes; a file that is not there is made, for its owner only. Several may try at once: all get the same.
// Errors: kIo; kBadFile where it is not 32 bytes.
Result<Secret> load_secret(const std::filesystem::path& path);

}  // namespace pagoda::engine

// write_whole: a file that is there whole or as it was, whatever ends the process meanwhile: written beside it, then renamed.
// Half-written ones of processes that ended have the ending kHalfWritten.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/error.h"

namespace pagoda {

inline constexpr std::string_view kHalfWritten = ".new";

// `mode`: of a new file, less the umask.   Errors: kIo, with the path and the system's word; nothing is left beside.
Status write_whole(const std::filesystem::path& path, std::span<const std::byte> bytes, mode_t mode);

}  // namespace pagoda

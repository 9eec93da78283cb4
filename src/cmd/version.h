// The version that --version, /version and system_fingerprint show: CMake's PROJECT_VERSION.
#pragma once

namespace pagoda::cmd {

extern const char* const kVersion;

}  // namespace pagoda::cmd

#include "cmd/version.h"

namespace pagoda::cmd {

const char* const kVersion = PAGODA_VERSION;

}  // namespace pagoda::cmd

#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace pagoda {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "pagoda: CHECK failed: %s at %s:%d. This is a bug in Pagoda; please report it.\n", expression,
               file, line);
  std::abort();
}

}  // namespace pagoda

// CHECK and DCHECK: programming errors end the process with file, line and expression. No client, file or peer input may reach one.
#pragma once

namespace pagoda {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}

#define CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::pagoda::check_failed(#condition, __FILE__, __LINE__))
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define DCHECK(condition) CHECK(condition)
#endif

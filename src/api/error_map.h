// The one table from our errors to what clients and dashboards see of them.     Threads: pure.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace pagoda::api {

struct ErrorFace {
  int status;              // HTTP
  std::string_view type;   // OpenAI's error.type
  std::string_view code;   // OpenAI's error.code; empty: null
  std::string_view label;  // of metrics and log lines
};

ErrorFace error_face(ErrorCode code);

// {"error":{"message","type","param","code"}}; param is the error's `where` if that names a field.
std::string openai_error(const Error& error);
// The same for what HTTP itself refuses: no such path, body too large.
std::string openai_error(int status, std::string_view message);

}  // namespace pagoda::api

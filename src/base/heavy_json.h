// JSON that is mostly one small thing, whose tree takes many times its text. Tests only.
#pragma once

#include <cstddef>
#include <string>

namespace pagoda {

inline constexpr const char* kHeavyElements[] = {"[]", "{}", "1", R"("")", R"({"a":1})", R"({"a":{"":[{}]}})"};

// `head`, n_bytes or a little more of `part` after `part`, `tail`.
inline std::string repeated_json(size_t n_bytes, const std::string& head, const std::string& part,
                                 const std::string& tail) {
  std::string text = head + part;
  while (text.size() < n_bytes) text += "," + part;
  return text + tail;
}

}  // namespace pagoda

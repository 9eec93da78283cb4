// JsonWeight: what a JSON text is made of, counted without parsing it, to know before what a tree of it would take.
// On text that is not JSON it says something, and never less than what a parser makes of it before it finds that out.
// Cost: one pass.     Threads: pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace pagoda {

struct JsonWeight {
  size_t n_bytes = 0;
  size_t n_containers = 0;  // arrays and objects
  size_t n_members = 0;     // of objects
  size_t n_elements = 0;    // of arrays and objects, but for the first of each
  size_t n_strings = 0;     // keys and values
};

inline JsonWeight weigh_json(std::string_view text) {
  JsonWeight weight{.n_bytes = text.size()};
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        ++weight.n_strings;
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
        break;
      case '[':
      case '{':
        ++weight.n_containers;
        break;
      case ':':
        ++weight.n_members;
        break;
      case ',':
        ++weight.n_elements;
        break;
      default:
        break;
    }
  }
  return weight;
}

}  // namespace pagoda

#include "text/user_text.h"

namespace pagoda::text {
namespace {
constexpr std::string_view kMark = "\xEF\xB7\x90";  // U+FDD0
}

std::string mark_user_text(const Tokenizer& tokenizer, std::string_view json) {
  std::string marked(json);
  // Breaking one token may leave another that overlapped it: again until none is left. Each round adds a mark inside every one found.
  for (auto begins = tokenizer.control_token_begins(marked); !begins.empty();
       begins = tokenizer.control_token_begins(marked)) {
    std::string next;
    size_t from = 0;
    for (const size_t begin : begins) {
      next.append(marked, from, begin + 1 - from).append(kMark);
      from = begin + 1;
    }
    marked = next.append(marked, from);
  }
  return marked;
}

UnmarkedText unmark_user_text(std::string_view marked) {
  UnmarkedText out;
  for (size_t from = 0; from <= marked.size();) {
    const size_t mark = marked.find(kMark, from);
    out.text.append(marked.substr(from, mark - from));
    if (mark == std::string_view::npos) break;
    out.guards.push_back(out.text.size());
    from = mark + kMark.size();
  }
  return out;
}

}  // namespace pagoda::text

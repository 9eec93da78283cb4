#include "cmd/read_file.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

namespace pagoda::cmd {

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(ErrorCode::kNotFound, "cannot read {}: {}", path, std::strerror(errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return fail(ErrorCode::kIo, "cannot read {}", path);
  return text;
}

Result<std::vector<TokenId>> parse_ids(const std::string& text, const std::string& path) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<TokenId> ids;
  for (size_t at = text.find_first_not_of(kSeparators); at != std::string::npos;
       at = text.find_first_not_of(kSeparators, at)) {
    int32_t id = 0;
    const char* begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), id);
    const bool whole = end == text.data() + text.size() || kSeparators.find(*end) != std::string_view::npos;
    if (error != std::errc() || !whole)
      return fail(ErrorCode::kInvalidArgument, "{}: not a token id at byte {}", path, at);
    ids.push_back(TokenId(id));
    at = static_cast<size_t>(end - text.data());
  }
  return ids;
}

}  // namespace pagoda::cmd

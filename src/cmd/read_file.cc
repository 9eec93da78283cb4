#include "cmd/read_file.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

namespace pagoda::cmd {

namespace {

constexpr size_t kMostBytes = size_t{256} << 20;  // far above any text or template; /dev/zero has an end too

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

Result<std::string> read_all(std::FILE* file, const std::string& path) {
  std::string text;
  std::array<char, 65536> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file)) {
    text.append(buffer.data(), n);
    if (text.size() > kMostBytes)
      return fail(ErrorCode::kInvalidArgument, "{} has more than {} bytes", path, kMostBytes);
  }
  if (std::ferror(file) != 0) return fail(ErrorCode::kIo, "cannot read {}: {}", path, std::strerror(errno));
  return text;
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  if (path == "-") return read_all(stdin, "standard input");
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) return fail(ErrorCode::kNotFound, "cannot read {}: {}", path, std::strerror(errno));
  return read_all(file.get(), path);
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

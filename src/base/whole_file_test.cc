#include "base/whole_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/test_folder.h"

namespace pagoda {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(WholeFile, TakesThePlaceOfWhatWasThere) {
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "a";
  ASSERT_TRUE(write_whole(path, bytes_of("first, and longer"), 0600));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  ASSERT_TRUE(write_whole(path, bytes_of("second"), 0600));
  EXPECT_EQ(text_of(path), "second");
}

TEST(WholeFile, LeavesNothingBesideWhereItCannot) {
  const TestFolder folder;
  std::filesystem::create_directory(folder.path() / "a");
  const Status written = write_whole(folder.path() / "a", bytes_of("x"), 0600);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_NE(written.error().message.find((folder.path() / "a").string()), std::string::npos);
  EXPECT_FALSE(write_whole(folder.path() / "none" / "a", bytes_of("x"), 0600));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace pagoda

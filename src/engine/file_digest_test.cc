#include "engine/file_digest.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>

#include "base/log.h"
#include "base/test_folder.h"

namespace pagoda::engine {
namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<FileStamp> stamps(const std::vector<std::filesystem::path>& paths) {
  std::vector<FileStamp> files;
  for (const auto& path : paths) files.push_back(*stamp_file(path));
  return files;
}

// Waits for its thread.
std::optional<Sha256> digest_of(std::vector<FileStamp> files, const std::filesystem::path& memory) {
  std::atomic<bool> is_done{false};
  FileDigest digest(std::move(files), memory, [&] { is_done.store(true); });
  std::optional<Sha256> first = digest.take();  // remembered
  while (!first && !is_done.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (!first) first = digest.take();
  EXPECT_FALSE(digest.take());
  return first;
}

TEST(FileDigestTest, DependsOnEveryByte) {
  const TestFolder folder;
  const std::filesystem::path a = folder.path() / "a", b = folder.path() / "b";
  std::string text((4 << 20) + 1000, 'x');
  write(a, text);
  text[(4 << 20) + 500] = 'y';
  write(b, text);
  const std::atomic<bool> stop{false};
  const Result<Sha256> of_a = digest_files(stamps({a}), stop), of_b = digest_files(stamps({b}), stop);
  ASSERT_TRUE(of_a && of_b);
  EXPECT_NE(*of_a, *of_b);
  EXPECT_EQ(*of_a, *digest_files(stamps({a}), stop));
  EXPECT_NE(*digest_files(stamps({a, b}), stop), *digest_files(stamps({b, a}), stop));
  EXPECT_EQ(digest_files(stamps({a}), std::atomic<bool>{true}).error().code, ErrorCode::kCancelled);
}

TEST(FileDigestTest, IsRememberedUntilTheFileChanges) {
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "model", memory = folder.path() / "digests";
  write(path, "one");
  const std::optional<Sha256> first = digest_of(stamps({path}), memory);
  ASSERT_TRUE(first);
  // What is written there is believed.
  std::string line;
  std::getline(std::ifstream(memory), line);
  ASSERT_EQ(line.substr(65), to_hex(*first));
  line.replace(65, 64, std::string(64, 'a'));
  write(memory, line + "\nrubbish\n");
  EXPECT_EQ(to_hex(digest_of(stamps({path}), memory).value()), std::string(64, 'a'));
  write(path, "two");
  const std::optional<Sha256> second = digest_of(stamps({path}), memory);
  ASSERT_TRUE(second);
  EXPECT_NE(*second, *first);
  EXPECT_NE(to_hex(*second), std::string(64, 'a'));
}

TEST(FileDigestTest, SaysThatThereWillBeNone) {
  start_log("error");
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "model";
  write(path, "one");
  const std::vector<FileStamp> before = stamps({path});
  const auto has_failed = [&] {
    std::atomic<bool> is_done{false};
    const FileDigest digest(before, {}, [&] { is_done.store(true); });
    while (!is_done.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return digest.has_failed();
  };
  EXPECT_FALSE(has_failed());
  write(path, "two");
  EXPECT_TRUE(has_failed());
}

TEST(FileDigestTest, AFileThatWasReplacedHasNone) {
  start_log("error");
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "model";
  write(path, "one");
  const std::vector<FileStamp> before = stamps({path});
  write(path, "two");
  EXPECT_FALSE(digest_of(before, {}));
  std::filesystem::remove(path);
  EXPECT_FALSE(digest_of(before, {}));
  EXPECT_FALSE(stamp_file(path));
}

}  // namespace
}  // namespace pagoda::engine

#include "engine/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>
#include <vector>

#include "base/test_folder.h"

namespace pagoda::engine {
namespace {

TEST(SecretTest, MadeOnceForItsOwnerOnly) {
  const TestFolder folder;
  const std::filesystem::path path = folder.path() / "secret";
  std::vector<Secret> secrets(8);
  std::vector<std::thread> threads;
  for (Secret& secret : secrets) {
    threads.emplace_back([&] {
      const Result<Secret> loaded = load_secret(path);
      ASSERT_TRUE(loaded) << loaded.error().to_string();
      secret = *loaded;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Secret& secret : secrets) EXPECT_EQ(secret, secrets[0]);
  EXPECT_NE(secrets[0], Secret{});
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SecretTest, NotASecret) {
  const TestFolder folder;
  std::ofstream(folder.path() / "short") << "0123456789";
  EXPECT_EQ(load_secret(folder.path() / "short").error().code, ErrorCode::kBadFile);
  EXPECT_EQ(load_secret(folder.path()).error().code, ErrorCode::kIo);
  EXPECT_EQ(load_secret(folder.path() / "nowhere" / "secret").error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace pagoda::engine

// What is asked about sessions while their blocks sleep in a tier.
#include "engine/session_desk.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/test_folder.h"
#include "engine/intake.h"
#include "engine/test_models.h"
#include "kv/session_part.h"

namespace pagoda::engine {
namespace {

constexpr size_t kTokens = 128;
constexpr size_t kMostExports = 16;

// A session of four blocks that are on the disk and no longer in RAM. Nothing arrives unless the test fetches it.
class SessionDeskTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineConfig config = tiny_config(tiny_model("tiny-llama"));
    config.tiers.disk_dir = folder_.path();
    config.tiers.disk_bytes = 64 << 20;
    auto created = StepRunner::create(config, clock_);
    ASSERT_TRUE(created) << created.error().to_string();
    runner_ = std::move(*created);
    desk_ = std::make_unique<SessionDesk>(*runner_, clock_, secret_, kv::SessionTransfer::kPartBytes, [] {});
    kv::Tiering& tiering = runner_->tiers()->tiering();
    wait([&] {
      runner_->tiers()->poll();
      return tiering.is_ready(runner_->model_id());
    });
    SessionAsk import = ask_of(SessionAsk::Verb::kImport);
    import.bytes = part_of(*tiering.identity(runner_->model_id()));
    ASSERT_TRUE(ask(import).value());
    wait([&] { return !runner_->is_storing(); });
    runner_->prefixes()->clear();
    tiering.set_compute_cost(runner_->model_id(), 1e6);
  }

  static void wait(const std::function<bool()>& is_done) {
    for (int i = 0; i < 50'000 && !is_done(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(200));
    ASSERT_TRUE(is_done());
  }

  std::string part_of(const Sha256& identity) const {
    kv::SessionPart part{.root = kv::tier_root(identity, cache_namespace(secret_, {}, {})),
                         .name = "chat",
                         .token_ids = random_tokens(1, kTokens),
                         .blocks = {}};
    for (uint32_t b = 0; b < kTokens / kv::kBlockTokens; ++b)
      part.blocks.push_back(
          {b, kv::GroupId(0), std::vector<std::byte>(runner_->model().groups()[0].layout.block_bytes, std::byte(b))});
    const auto bytes = kv::encode_part(part, secret_);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  static SessionAsk ask_of(SessionAsk::Verb verb) {
    SessionAsk ask;
    ask.verb = verb;
    ask.name = "chat";
    return ask;
  }
  // None: it waits.
  std::optional<Result<SessionAnswer>> ask(SessionAsk ask) {
    auto heard = std::make_shared<std::optional<Result<SessionAnswer>>>();
    desk_->ask(std::move(ask), [heard](Result<SessionAnswer> answer) { *heard = std::move(answer); });
    return *heard;
  }
  void ask_export() {
    const size_t n = answers_.size();
    answers_.emplace_back();
    desk_->ask(ask_of(SessionAsk::Verb::kExport),
               [this, n](Result<SessionAnswer> answer) { answers_[n] = std::move(answer); });
  }
  size_t n_answered() const {
    return static_cast<size_t>(std::ranges::count_if(answers_, [](const auto& answer) { return answer.has_value(); }));
  }

  FakeClock clock_;
  const TestFolder folder_;
  const Secret secret_{};
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<SessionDesk> desk_;
  std::vector<std::optional<Result<SessionAnswer>>> answers_;  // of exports
};

TEST_F(SessionDeskTest, SessionsInASharedSpaceAreTheirTenantsOwn) {
  using Verb = SessionAsk::Verb;
  const auto told = [&](Verb verb, const std::string& tenant, const std::string& name) {
    SessionAsk one = ask_of(verb);
    one.tenant = tenant;
    one.cache_space = "team";
    one.name = name;
    one.number = 10;
    return *ask(std::move(one));
  };
  EXPECT_EQ(std::get<SessionReport>(*told(Verb::kCreate, "a", "s")).info.name, "s");
  EXPECT_TRUE(told(Verb::kGet, "a", "s"));
  EXPECT_EQ(told(Verb::kGet, "b", "s").error().message, "there is no session s");
  EXPECT_TRUE(told(Verb::kCreate, "b", "s"));
  EXPECT_TRUE(told(Verb::kCreate, "b", "t"));
  EXPECT_EQ(told(Verb::kCreate, "b", "t").error().message, "there is a session t already");
  const auto page = std::get<SessionPage>(*told(Verb::kList, "a", ""));
  ASSERT_EQ(page.sessions.size(), 1u);
  EXPECT_EQ(page.sessions[0].name, "s");
  EXPECT_EQ(std::get<SessionPage>(*told(Verb::kList, "b", "s")).sessions.size(), 1u);  // those behind it
  EXPECT_TRUE(told(Verb::kDelete, "b", "s"));
  EXPECT_TRUE(told(Verb::kGet, "a", "s"));
  EXPECT_EQ(told(Verb::kCreate, "a", std::string(112, 'x')).error().code, ErrorCode::kInvalidArgument);
  Request request;
  request.tenant = "a";
  request.cache_space = "team";
  request.session_id = "s";
  const kv::SessionId entered = desk_->enter(request);
  EXPECT_EQ(std::get<SessionReport>(*told(Verb::kGet, "a", "s")).info.n_running, 1);
  desk_->leave(entered);
}

TEST_F(SessionDeskTest, SixteenExportsWaitAndNoMore) {
  for (size_t i = 0; i < kMostExports; ++i) ask_export();
  EXPECT_EQ(n_answered(), 0u);
  EXPECT_TRUE(desk_->next_us());
  ask_export();
  ASSERT_EQ(n_answered(), 1u);
  ASSERT_TRUE(answers_.back());
  ASSERT_FALSE(*answers_.back());
  EXPECT_EQ(answers_.back()->error().code, ErrorCode::kOverloaded);
  // Others are answered meanwhile, and what was waited for arrives.
  EXPECT_TRUE(ask(ask_of(SessionAsk::Verb::kGet)).value());
  wait([&] {
    runner_->is_storing();
    desk_->poll();
    return n_answered() == kMostExports + 1;
  });
  for (size_t i = 0; i < kMostExports; ++i) {
    ASSERT_TRUE(*answers_[i]) << answers_[i]->error().message;
    const auto part = kv::parse_part(std::get<SessionBytes>(**answers_[i]).bytes);
    ASSERT_TRUE(part);
    EXPECT_EQ(part->blocks.size(), kTokens / kv::kBlockTokens);
  }
  ask_export();
  EXPECT_EQ(n_answered(), kMostExports + 2) << "there is room again, and RAM has the blocks";
}

TEST_F(SessionDeskTest, AnExportWaitsTenSecondsAndTakesWhatThereIs) {
  ask_export();
  clock_.advance_us(9'000'000);
  desk_->poll();
  EXPECT_EQ(n_answered(), 0u);
  clock_.advance_us(1'000'000);
  desk_->poll();
  ASSERT_EQ(n_answered(), 1u);
  ASSERT_TRUE(*answers_[0]);
  const auto part = kv::parse_part(std::get<SessionBytes>(**answers_[0]).bytes);
  ASSERT_TRUE(part);
  EXPECT_TRUE(part->blocks.empty());
  EXPECT_EQ(part->token_ids.size(), kTokens);
  EXPECT_FALSE(desk_->next_us() && runner_->sessions()->next_us() != desk_->next_us());
}

}  // namespace
}  // namespace pagoda::engine

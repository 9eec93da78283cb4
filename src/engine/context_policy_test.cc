#include "engine/context_policy.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/test_models.h"

namespace pagoda::engine {
namespace {

using Kind = ContextPolicy::Kind;

std::vector<TokenId> count_from(int first, int n) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i) tokens.emplace_back(first + i);
  return tokens;
}

TEST(ContextPolicyTest, DropsHalfWindows) {
  struct Row {
    int n_tokens, kept, context, most, dropped;
  };
  for (const Row& row : std::vector<Row>{{99, 4, 100, 99, 0},
                                         {100, 4, 100, 99, 48},
                                         {100, 4, 100, 100, 0},
                                         {147, 4, 100, 99, 48},
                                         {148, 4, 100, 99, 96},
                                         {1'000'000, 0, 100, 99, 999'950},
                                         {100, 50, 100, 99, 25},
                                         {16, 8, 16, 15, 4}}) {
    EXPECT_EQ(tokens_to_drop(row.n_tokens, row.kept, row.context, row.most), row.dropped) << row.n_tokens;
  }
}

TEST(ContextPolicyTest, WindowsKeepTheFirstAndTheRecentTokens) {
  const ContextEdit none = drop_window(count_from(0, 99), 4, 100, 99);
  EXPECT_EQ(none.tokens, count_from(0, 99));
  EXPECT_EQ(none.dropped_tokens, 0);
  const ContextEdit edit = drop_window(count_from(0, 100), 4, 100, 99);
  EXPECT_EQ(edit.dropped_tokens, 48);
  std::vector<TokenId> expected = count_from(0, 4);
  for (const TokenId token : count_from(52, 48)) expected.push_back(token);
  EXPECT_EQ(edit.tokens, expected);
}

// A conversation that grows is cut at the same place for half a window, and where the answer that it contains was cut.
TEST(ContextPolicyTest, WindowsOfAGrowingPromptBeginAlike) {
  ContextPlan plan{.policy = Kind::kSinks, .context_tokens = 100, .keep_tokens = 4, .cuts = {}};
  ContextWindow window(plan, 10);
  std::vector<TokenId> list = count_from(0, 10);
  int n_edits = 0;
  for (int n = 11; n <= 1000; ++n) {
    list.push_back(TokenId(n - 1));
    if (window.is_full(static_cast<int>(list.size()))) {
      list = window.edit(list).tokens;
      ++n_edits;
    }
    EXPECT_EQ(list, drop_window(count_from(0, n), 4, 100, 99).tokens);
  }
  EXPECT_EQ(n_edits, 19);
}

// A template of system messages of 10 tokens, turns of some sizes, and 3 tokens of generation prompt.
struct Talk {
  std::vector<int> turns;
  int n_rendered = 0;
  int system_tokens = 10;

  std::vector<TokenId> prompt(int n_dropped) const {
    std::vector<TokenId> tokens = count_from(0, system_tokens);
    for (size_t i = static_cast<size_t>(n_dropped); i < turns.size(); ++i) {
      for (const TokenId token : count_from(1000 * static_cast<int>(i + 1), turns[i])) tokens.push_back(token);
    }
    for (const TokenId token : count_from(500, 3)) tokens.push_back(token);
    return tokens;
  }
  Result<TurnPrompts> plan(int context, int answer) {
    return plan_turns(prompt(0), static_cast<int>(turns.size()) - 1, context, context - 1, answer, [this](int n) {
      ++n_rendered;
      return Result<std::vector<TokenId>>(prompt(n));
    });
  }
};
std::vector<int> dropped_turns(const TurnPrompts& plan) {
  std::vector<int> out{plan.first.dropped_turns};
  for (const TurnCut& cut : plan.next) out.push_back(cut.dropped_turns);
  return out;
}

TEST(ContextPolicyTest, TurnsGoOldestFirstAndWhole) {
  Talk fits{.turns = {20, 20, 20}};
  EXPECT_EQ(dropped_turns(*fits.plan(100, 27)), std::vector<int>{0});
  EXPECT_EQ(fits.n_rendered, 0);
  EXPECT_EQ(dropped_turns(*fits.plan(100, 28)), (std::vector<int>{0, 2}));  // 50 tokens are more than both of them

  Talk more{.turns = {20, 20, 20, 20, 20}};  // 113 tokens: 50 must go
  const auto plan = more.plan(100, 10);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->first.dropped_turns, 3);
  EXPECT_EQ(plan->first.prompt, more.prompt(3));
  EXPECT_TRUE(plan->next.empty());
  EXPECT_EQ(dropped_turns(*more.plan(100, 1000)), (std::vector<int>{3, 4}));
}

TEST(ContextPolicyTest, TheLastTurnStaysOrNothingFits) {
  Talk talk{.turns = {20, 86}};
  EXPECT_EQ(dropped_turns(*talk.plan(100, 1000)), std::vector<int>{1});
  talk.turns = {20, 87};
  const auto plan = talk.plan(100, 1000);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kContextExceeded);
  EXPECT_EQ(plan.error().where, "messages");
  for (const char* number : {"120", "100 ", " 100 with"}) {
    EXPECT_NE(plan.error().message.find(number), std::string::npos) << plan.error().message;
  }
  talk.turns = {200};
  EXPECT_FALSE(talk.plan(100, 1000));
}

TEST(ContextPolicyTest, ATemplateThatFailsIsTheError) {
  const auto plan = plan_turns(count_from(0, 200), 5, 100, 99, 1, [](int) -> Result<std::vector<TokenId>> {
    return fail(ErrorCode::kInvalidArgument, "no");
  });
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().message, "no");
}

TEST(ContextPolicyTest, LongConversationsTakeFewRenderings) {
  Talk talk{.turns = std::vector<int>(4000, 50)};
  const auto plan = talk.plan(8192, 1 << 20);
  ASSERT_TRUE(plan);
  EXPECT_LE(plan->first.prompt.size(), 8191u);
  EXPECT_GE(plan->first.prompt.size(), 8192u / 2 - 50);
  EXPECT_LT(talk.n_rendered, 4 * 12);
}

// Random talks: whatever the answer's length, lists fit, keep system, last turn and the end of the answer; what an answer was cut to is
// what the next request, which contains it, is cut to.
TEST(ContextPolicyTest, AnswersOfAnyLengthFit) {
  std::mt19937 random(5);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const int context = 60 + draw(200);
    Talk talk;
    for (int i = draw(12); i >= 0; --i) talk.turns.push_back(1 + draw(40));
    auto made = talk.plan(context, 1000);
    if (!made) continue;
    ContextPlan plan{.policy = Kind::kDropTurns, .context_tokens = context, .cuts = std::move(made->next)};
    std::vector<TokenId> list = made->first.prompt;
    const std::vector<TokenId> shortest = talk.prompt(static_cast<int>(talk.turns.size()) - 1);
    const int last = static_cast<int>(plan.cuts.empty() ? list.size() : plan.cuts.back().prompt.size());
    const int answer = answer_tokens_behind(last, context, 1000);
    ContextWindow window(plan, static_cast<int>(list.size()));
    int n_list = static_cast<int>(list.size()), n_edits = 0;
    for (int i = 1; i < answer; ++i) {
      list.push_back(TokenId(100'000 + i));
      ++n_list;
      if (!window.is_full(n_list)) continue;
      const ContextEdit edit = window.edit(list);
      ++n_edits;
      ASSERT_EQ(edit.tokens.size() + static_cast<size_t>(edit.dropped_tokens), list.size());
      list = edit.tokens;
      n_list = static_cast<int>(list.size());
      ASSERT_LT(n_list, context);
      ASSERT_TRUE(std::equal(list.begin(), list.begin() + talk.system_tokens, shortest.begin()));
      ASSERT_EQ(list.back(), TokenId(100'000 + i));
    }
    EXPECT_LE(n_edits, 1000 / (context / 8) + 1 + static_cast<int>(plan.cuts.size()));
  }
}

TEST(ContextPolicyTest, TheNextRequestIsCutWhereItsAnswerWas) {
  Talk talk{.turns = {30, 30, 30, 30, 30}};  // 163 tokens of 200
  const auto before = talk.plan(200, 1000);
  ASSERT_TRUE(before);
  ASSERT_EQ(dropped_turns(*before), (std::vector<int>{0, 4}));
  talk.turns.back() += 60;  // the answer: 100 tokens had to go when it came to the end of the context
  talk.turns.push_back(10);
  EXPECT_EQ(talk.plan(200, 100)->first.dropped_turns, 4);
}

// Templates may write more for less; edits shorten the list all the same, or there are none.
TEST(ContextPolicyTest, OddTemplatesEnd) {
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> sizes(1 + random() % 20);
    for (int& size : sizes) size = 1 + static_cast<int>(random() % 150);
    const auto plan = plan_turns(
        count_from(0, sizes[0]), static_cast<int>(sizes.size()) - 1, 100, 99, 1000,
        [&](int n) { return Result<std::vector<TokenId>>(count_from(0, sizes.at(static_cast<size_t>(n)))); });
    if (!plan) {
      EXPECT_EQ(plan.error().code, ErrorCode::kContextExceeded);
      continue;
    }
    size_t last = plan->first.prompt.size();
    EXPECT_LE(last, 99u);
    for (const TurnCut& cut : plan->next) {
      EXPECT_LT(cut.prompt.size(), last);
      last = cut.prompt.size();
    }
  }
}

TEST(ContextPolicyTest, AnswersBehindALongPromptEndWithTheContext) {
  EXPECT_EQ(answer_tokens_behind(76, 100, 1000), 1000);  // an edit frees 12, an eighth
  EXPECT_EQ(answer_tokens_behind(77, 100, 1000), 23);
  EXPECT_EQ(answer_tokens_behind(90, 100, 1000), 10);
  EXPECT_EQ(answer_tokens_behind(90, 100, 5), 5);
}

TEST(ContextPolicyTest, RefusingNeverFills) {
  const ContextPlan plan{.context_tokens = 100, .cuts = {}};
  EXPECT_FALSE(ContextWindow(plan, 10).is_full(100));
}

}  // namespace
}  // namespace pagoda::engine

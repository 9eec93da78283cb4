#include "tools/bench_work.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace pagoda::tools {
namespace {

constexpr int kShortPrompt = 16;
constexpr int kDecodeTokens = 128;     // after a short prompt
constexpr int kDeepDecodeTokens = 48;  // after a long one
constexpr int kBatchPrompt = 128;
constexpr int kBatchTokens = 64;
constexpr int kSharedPrefix = 2000;
constexpr int kOwnPrompt = 16;
constexpr int kQuickTokens = 24;
constexpr int kQuickPrefix = 256;
constexpr int kMostTokens = 1 << 22;
constexpr int kMostStreams = 256;

// "512", "2k"; none if it is no such number.
std::optional<int> number_of(std::string_view text) {
  int scale = 1;
  if (text.ends_with('k')) {
    scale = 1000;
    text.remove_suffix(1);
  }
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostTokens / scale)
    return std::nullopt;
  return value * scale;
}

std::optional<BenchWork> streams_work(std::string_view name, WorkKind kind, std::optional<int> n_streams) {
  if (!n_streams || *n_streams > kMostStreams) return std::nullopt;
  const bool shares = kind == WorkKind::kShared;
  return BenchWork{.name = std::string(name),
                   .kind = kind,
                   .n_streams = *n_streams,
                   .prefix_tokens = shares ? kSharedPrefix : 0,
                   .prompt_tokens = shares ? kOwnPrompt : kBatchPrompt,
                   .output_tokens = kBatchTokens};
}

std::optional<BenchWork> parse_work(std::string_view name) {
  const auto after = [&](std::string_view prefix) { return number_of(name.substr(prefix.size())); };
  if (name == "accuracy") return BenchWork{.name = "accuracy", .kind = WorkKind::kAccuracy};
  if (name == "decode") {
    return BenchWork{
        .name = "decode", .kind = WorkKind::kDecode, .prompt_tokens = kShortPrompt, .output_tokens = kDecodeTokens};
  }
  if (name.starts_with("prefill")) {
    if (const auto n = after("prefill"))
      return BenchWork{.name = std::string(name), .kind = WorkKind::kPrefill, .prompt_tokens = *n, .output_tokens = 1};
  } else if (name.starts_with("decode")) {
    if (const auto n = after("decode")) {
      return BenchWork{.name = std::string(name),
                       .kind = WorkKind::kDecode,
                       .prompt_tokens = *n,
                       .output_tokens = kDeepDecodeTokens};
    }
  } else if (name.starts_with("batch")) {
    return streams_work(name, WorkKind::kBatch, after("batch"));
  } else if (name.starts_with("shared")) {
    return streams_work(name, WorkKind::kShared, after("shared"));
  }
  return std::nullopt;
}

// All streams' rows of one decode step, the t-th.
StepLoad decode_load(const BenchWork& work, int t) {
  StepLoad load;
  load.streams.assign(static_cast<size_t>(work.n_streams), {work.prefix_tokens + work.prompt_tokens + t, 1});
  load.sampled_rows = work.n_streams;
  load.shared_tokens = work.prefix_tokens;
  return load;
}

void add_decode(const ModelCosts& costs, const BenchWork& work, std::vector<StepCost>& steps) {
  for (int t = 0; t + 1 < work.output_tokens; ++t) steps.push_back(step_cost(costs, decode_load(work, t)));
}

bool measures_prefill(const BenchWork& work) { return work.kind != WorkKind::kDecode; }

}  // namespace

double BenchWork::counted_tokens() const {
  switch (kind) {
    case WorkKind::kPrefill:
      return prompt_tokens;
    case WorkKind::kDecode:
      return output_tokens - 1;  // the first one comes with the prompt
    case WorkKind::kBatch:
    case WorkKind::kShared:
      return static_cast<double>(n_streams) * output_tokens;
    case WorkKind::kAccuracy:
      break;
  }
  return 0;
}

Result<std::vector<BenchWork>> parse_works(std::string_view list) {
  std::vector<BenchWork> works;
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    const std::optional<BenchWork> work = parse_work(name);
    if (!work) {
      return fail(
          ErrorCode::kInvalidArgument,
          "there is no work \"{}\"; there are prefillN, decode, decodeN, batchN, sharedN (N as 512 or 2k) and accuracy",
          name);
    }
    if (std::ranges::none_of(works, [&](const BenchWork& other) { return other.name == name; })) works.push_back(*work);
    if (comma == std::string_view::npos) return works;
    list.remove_prefix(comma + 1);
  }
}

std::vector<BenchWork> default_works(Thoroughness thoroughness) {
  return *parse_works(thoroughness == Thoroughness::kQuick
                          ? "prefill128,prefill512,decode,decode512,batch4,shared4,accuracy"
                          : "prefill128,prefill512,prefill2k,prefill7k,prefill16k,decode,decode2k,decode7k,decode16k,"
                            "batch1,batch4,batch16,shared16,accuracy");
}

BenchWork shortened(BenchWork work) {
  work.output_tokens = std::min(work.output_tokens, kQuickTokens);
  work.prefix_tokens = std::min(work.prefix_tokens, kQuickPrefix);
  return work;
}

std::vector<StepCost> actual_steps(const ModelCosts& costs, const BenchWork& work, int step_tokens) {
  std::vector<StepCost> steps;
  if (measures_prefill(work)) {
    // Streams one after another: who shares a step with whom changes the bytes a little, and no operation.
    for (int stream = 0; stream < work.n_streams; ++stream) {
      for (int at = 0; at < work.prompt_tokens; at += step_tokens) {
        const int n = std::min(step_tokens, work.prompt_tokens - at);
        steps.push_back(step_cost(
            costs, {.streams = {{work.prefix_tokens + at, n}}, .sampled_rows = at + n == work.prompt_tokens ? 1 : 0}));
      }
    }
  }
  add_decode(costs, work, steps);
  return steps;
}

std::vector<StepCost> ideal_steps(const ModelCosts& costs, const BenchWork& work) {
  std::vector<StepCost> steps;
  if (measures_prefill(work)) {
    StepLoad load;
    load.streams.assign(static_cast<size_t>(work.n_streams), {work.prefix_tokens, work.prompt_tokens});
    load.sampled_rows = work.n_streams;
    load.shared_tokens = work.prefix_tokens;
    steps.push_back(step_cost(costs, load));
  }
  add_decode(costs, work, steps);
  return steps;
}

double working_set_bytes(const ModelCosts& costs, const BenchWork& work) {
  if (work.output_tokens < 2) return ideal_steps(costs, work).back().bytes;
  return step_cost(costs, decode_load(work, work.output_tokens - 2)).bytes;
}

}  // namespace pagoda::tools

#include "tools/bench_requests.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "base/random.h"

namespace pagoda::tools {
namespace {

using engine::Engine;

// One request as its client sees it.
struct Stream {
  Engine::Submitted submitted;
  StreamResult result;
  bool finished = false;

  Status take() {
    for (engine::Event& event : submitted.stream->take()) {
      if (auto* failed = std::get_if<engine::Failed>(&event)) return fail(std::move(failed->error));
      if (auto* delta = std::get_if<engine::Delta>(&event)) {
        result.tokens.insert(result.tokens.end(), delta->tokens.begin(), delta->tokens.end());
        std::ranges::move(delta->logprobs, std::back_inserter(result.logprobs));
      }
      if (std::get_if<engine::Finished>(&event) != nullptr) finished = true;
    }
    return {};
  }
};

// Records follow the last events within the same step.
Status take_records(Engine& engine, std::vector<Stream>& streams) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  size_t missing = streams.size();
  while (missing > 0) {
    const auto record = engine.records().requests.pop();
    if (!record) {
      if (std::chrono::steady_clock::now() > deadline)
        return fail(ErrorCode::kInternal, "the engine left no record of a request");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      continue;
    }
    const auto at = std::ranges::find(streams, record->id, [](const Stream& s) { return s.submitted.id; });
    if (at == streams.end()) continue;
    at->result.record = *record;
    --missing;
  }
  while (engine.records().steps.pop()) {
  }
  return {};
}

}  // namespace

Result<std::vector<StreamResult>> run_requests(Engine& engine, std::vector<engine::Request> requests) {
  const auto signals = std::make_shared<std::atomic<int>>(0);
  std::vector<Stream> streams;
  for (engine::Request& request : requests) {
    streams.push_back({.submitted = engine.submit(std::move(request),
                                                  [signals] {
                                                    signals->fetch_add(1);
                                                    signals->notify_one();
                                                  }),
                       .result = {}});
  }
  while (!std::ranges::all_of(streams, &Stream::finished)) {
    const int before = signals->load();
    for (Stream& stream : streams) {
      if (Status status = stream.take(); !status) {
        for (const Stream& other : streams) engine.cancel(other.submitted.id);
        return fail(std::move(status).error());
      }
    }
    if (!std::ranges::all_of(streams, &Stream::finished)) signals->wait(before);
  }
  TRY(take_records(engine, streams));
  std::vector<StreamResult> results;
  for (Stream& stream : streams) results.push_back(std::move(stream.result));
  return results;
}

std::vector<TokenId> random_prompt(uint64_t seed, int n, int vocab_size) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < n; ++i)
    tokens.emplace_back(static_cast<int32_t>(uniform(seed, 0, static_cast<uint32_t>(i), 0) * vocab_size));
  return tokens;
}

}  // namespace pagoda::tools

// Diagnosing: the records of the last minute, summed, and GET /v1/diagnosis over them (tools/diagnosis.h).
// Threads: all on the record pump's thread.     Memory: a slot for each second.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "serve/record_pump.h"
#include "tools/diagnosis.h"

namespace pagoda::serve {

// What does not change while a server runs.
struct Capacity {
  int n_threads = 0;
  double usable_cores = 0;
  uint64_t weight_bytes = 0;
  double kv_bytes_per_token = 0;
};

class Diagnosing final : public RecordSink {
 public:
  static constexpr int64_t kSlots = 60;

  explicit Diagnosing(const Capacity& capacity) : capacity_(capacity) {}

  void on_request(const engine::RequestRecord& record) override;
  void on_step(const engine::StepRecord& record) override;

  // The seconds before now_us, by the engine's clock, with the KV memory as it is.
  tools::Window window(int64_t now_us, const engine::EngineStats& stats,
                       const std::optional<kv::Account>& account) const;

 private:
  // One second's sums.
  struct Slot {
    int64_t second = -1;
    tools::Window sums;
    std::vector<int64_t> first_tokens_us{};
    std::array<uint64_t, std::tuple_size_v<decltype(engine::StepTokens::gaps.counts)>> gaps{};
  };
  Slot& slot_at(int64_t us);

  const Capacity capacity_;
  std::array<Slot, kSlots> slots_;
  int64_t first_us_ = -1;  // of the first record
};

// {"object":"diagnosis","bound":...,"summary":...,"window_seconds":...,"time":{...},"findings":[...]}
std::string diagnosis_json(const tools::Window& window, const tools::Diagnosis& diagnosis);
// The same for people. Nothing if it is not what diagnosis_json makes.
std::optional<std::string> diagnosis_text(std::string_view json);

}  // namespace pagoda::serve

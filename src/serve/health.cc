#include "serve/health.h"

#include "api/json_text.h"

namespace pagoda::serve {

std::string why_not_live(const HealthFacts& facts) {
  const int64_t turn_s = facts.engine.turn_us / 1'000'000;
  if (turn_s < facts.stall_limit.count()) return {};
  return fmt::format("the engine has been in one step for {} s (limit {} s, --stall-limit)", turn_s,
                     facts.stall_limit.count());
}

std::string why_not_ready(const HealthFacts& facts) {
  if (facts.is_stopping) return "the server is stopping";
  if (facts.calls >= facts.most_calls)
    return fmt::format("{} requests are being answered, as many as there may be (--max-streams)", facts.calls);
  if (facts.engine.most_waiting > 0 && facts.engine.waiting >= facts.engine.most_waiting)
    return fmt::format("{} requests are waiting, as many as there may be (--max-queued)", facts.engine.waiting);
  return why_not_live(facts);
}

http::HttpResponse probe_response(const std::string& why_not) {
  if (why_not.empty()) return {200, "application/json", {}, R"({"status":"ok"})"};
  return {
      503, "application/json", {}, fmt::format(R"({{"status":"unavailable","reason":{}}})", api::json_string(why_not))};
}

}  // namespace pagoda::serve

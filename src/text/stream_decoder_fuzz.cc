// The same bytes in one push and one by one give the same text and stop. Input: stop strings, one per line; an empty line; bytes.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/stream_decoder.h"

namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> stop;
};

Outcome decode(const std::vector<std::string>& stops, std::string_view bytes, size_t step) {
  pagoda::text::StreamDecoder decoder(stops);
  Outcome outcome;
  const auto take = [&](const pagoda::text::StreamDecoder::Delta& delta) {
    outcome.text += delta.text;
    if (delta.matched_stop) outcome.stop = delta.matched_stop;
  };
  for (size_t i = 0; i < bytes.size(); i += step) take(decoder.push(bytes.substr(i, step)));
  take(decoder.flush());
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> stops;
  while (stops.size() < 8) {
    const size_t end = rest.find('\n');
    if (end == 0 || end == std::string_view::npos) break;
    stops.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  if (!rest.empty() && rest[0] == '\n') rest.remove_prefix(1);
  const Outcome whole = decode(stops, rest, rest.size() + 1);
  for (const size_t step : {1, 3}) {
    const Outcome pieces = decode(stops, rest, step);
    CHECK(pieces.text == whole.text && pieces.stop == whole.stop);
  }
  for (const std::string& stop : stops) {
    const std::string as_text = decode({}, stop, stop.size() + 1).text;
    CHECK(as_text.empty() || whole.text.find(as_text) == std::string::npos);
  }
  return 0;
}

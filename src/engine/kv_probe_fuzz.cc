// A probe's file with the right head and checksum around any bytes is refused, or read as something that is written and read the same again.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/kv_probe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  const Hash128 key{.low = 1, .high = 2};
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  engine::parse_probe(bytes, key);

  const std::string empty = engine::probe_text(key, {});
  const std::string head = empty.substr(0, empty.find("\nunix ") + 1);
  const std::string body = head + std::string(bytes);
  const std::string text = body + "xxh3 " + to_hex(xxh3_64(std::as_bytes(std::span(body)))) + "\n";
  const auto probe = engine::parse_probe(text, key);
  if (!probe) return 0;
  const std::string again = engine::probe_text(key, *probe);
  const auto reread = engine::parse_probe(again, key);
  CHECK(reread && engine::probe_text(key, *reread) == again);
  return 0;
}

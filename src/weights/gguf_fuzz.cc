// Any bytes as a GGUF file: parse, read every value through every getter, touch every tensor, derive the config. No crash, no
// allocation beyond what the input justifies.
#include <cstddef>
#include <cstdint>
#include <span>

#include "weights/gguf.h"
#include "weights/model_config.h"
#include "weights/model_report.h"
#include "weights/tokenizer_metadata.h"

namespace {

using pagoda::weights::Gguf;

void read_values(const Gguf& gguf) {
  for (const auto& entry : gguf.metadata()) {
    (void)gguf.get_u64(entry.key);
    (void)gguf.get_i64(entry.key);
    (void)gguf.get_f64(entry.key);
    (void)gguf.get_bool(entry.key);
    (void)gguf.get_array_i64(entry.key);
    (void)gguf.get_array_f32(entry.key);
    (void)gguf.get_string(entry.key);
    (void)gguf.get_array_string(entry.key);
  }
}

// Reads the ends of each tensor: out of bounds is a sanitizer finding.
unsigned touch_tensors(const Gguf& gguf) {
  unsigned sum = 0;
  for (const auto& tensor : gguf.tensors()) {
    if (tensor.bytes.empty()) continue;
    sum += static_cast<unsigned>(tensor.bytes.front()) + static_cast<unsigned>(tensor.bytes.back());
    sum += gguf.find(tensor.name) == &tensor ? 1U : 0U;
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto gguf = Gguf::from_bytes(std::as_bytes(std::span(data, size)), "fuzz");
  if (!gguf) return 0;
  read_values(*gguf);
  volatile unsigned sink = touch_tensors(*gguf);
  (void)sink;
  (void)pagoda::weights::read_model_config(*gguf);
  (void)pagoda::weights::read_tokenizer_metadata(*gguf);
  (void)pagoda::weights::describe(*gguf);
  return 0;
}

// A key file is refused without a word of what it holds, or read as tenants that are written and read the same again.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/key_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::serve;
  const auto tenants = parse_key_file({reinterpret_cast<const char*>(data), size});
  if (!tenants) {
    const std::string text = tenants.error().to_string();
    CHECK(!text.empty() && text.size() < 300 && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; }));
    return 0;
  }
  for (const Tenant& tenant : *tenants) CHECK(is_tenant_name(tenant.name) && tenant.weight >= 1);
  const auto again = parse_key_file(key_file_json(*tenants));
  CHECK(again && *again == *tenants);
  return 0;
}

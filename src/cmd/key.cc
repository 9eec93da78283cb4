// key: a new API key, and what the server's key file has of it.
#include <cstdio>

#include "base/digest.h"
#include "cmd/commands.h"
#include "engine/secret.h"
#include "serve/key_file.h"

namespace pagoda::cmd {

Status key(const Options& options) {
  const std::string name = options.text.empty() ? "default" : options.text;
  if (!serve::is_tenant_name(name)) {
    return fail(ErrorCode::kInvalidArgument, "a tenant's name has 1 to {} letters, digits and - _ .",
                serve::kMaxTenantName);
  }
  const std::string made = "pgd-" + to_hex(engine::random_secret());
  const std::string entry = serve::tenant_json({.name = name, .keys = {serve::key_digest(made)}});
  if (options.json) {
    std::printf("{\"key\":\"%s\",\"entry\":%s}\n", made.c_str(), entry.c_str());
  } else {
    std::printf(
        "%s\nThis is the key: it is not shown again. Its entry in the list \"tenants\" of the --api-keys file:\n%s\n",
        made.c_str(), entry.c_str());
  }
  return {};
}

}  // namespace pagoda::cmd

#include "cmd/commands.h"
namespace pagoda::cmd {
Status inspect(const Options&) { return fail(ErrorCode::kUnsupported, "inspect"); }
Status run(const Options&) { return fail(ErrorCode::kUnsupported, "run"); }
}

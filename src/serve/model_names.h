// Which loaded model a request's `model` means.
#pragma once

#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "serve/server.h"

namespace pagoda::serve {

// asked: as the client wrote it, empty if it did not. kNotFound or kInvalidArgument with where = "model".
Result<engine::ModelInfo> resolve_model(const std::vector<engine::ModelInfo>& loaded, std::string_view asked,
                                        ModelNames policy);

}  // namespace pagoda::serve

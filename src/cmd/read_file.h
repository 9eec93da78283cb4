// Whole files as text, for arguments that name one.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/token_id.h"

namespace pagoda::cmd {

// "-" is standard input.
Result<std::string> read_text(const std::string& path);

// Integers separated by blanks, commas or newlines; JSON brackets are allowed.
Result<std::vector<TokenId>> parse_ids(const std::string& text, const std::string& path);

}  // namespace pagoda::cmd

#include <cstdio>

#include "cmd/commands.h"
#include "cmd/model_path.h"
#include "cmd/read_file.h"
#include "engine/served_model.h"

namespace pagoda::cmd {

Status tokenize(const Options& options) {
  if (options.has_text == !options.file.empty())
    return fail(Error{ErrorCode::kInvalidArgument, "give either TEXT or a file", "--file"});
  TRY_ASSIGN(const std::filesystem::path path, find_model(options.model));
  std::string text = options.text;
  if (!options.file.empty()) {
    TRY_ASSIGN(text, read_text(options.file));
  }
  TRY_ASSIGN(const weights::Gguf gguf, weights::Gguf::open(path));
  TRY_ASSIGN(const text::Tokenizer tokenizer, engine::make_tokenizer(gguf));
  const text::BosMode bos = options.bos == "on"    ? text::BosMode::kOn
                            : options.bos == "off" ? text::BosMode::kOff
                                                   : text::BosMode::kAuto;
  const text::SpecialMode special = options.parse_special ? text::SpecialMode::kParse : text::SpecialMode::kPlain;
  std::string out = "[";
  for (const TokenId token : tokenizer.encode(text, {bos, special})) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(token.value);
  }
  std::printf("%s]\n", out.c_str());
  return {};
}

}  // namespace pagoda::cmd

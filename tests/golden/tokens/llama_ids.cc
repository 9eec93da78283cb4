// Made the *.ids and *.fnv files of this folder: the token ids that llama.cpp gives corpus.txt. Not part of the build; with LLAMA a
// llama.cpp checkout and BUILD its build folder (the one in llama-cpp-python 0.3.36 was used):
//
//   c++ -std=c++17 -O1 -I$LLAMA/include -I$LLAMA/ggml/include llama_ids.cc -o llama_ids -L$BUILD/bin -lllama -lggml -lggml-base
//   llama_ids MODEL corpus.txt ids > smollm2.ids       one line per string: ids in plain mode, "|", ids with special tokens parsed
//                                                      (left out where equal)
//   llama_ids MODEL corpus.txt fnv > tiny-llama.fnv    the same, each list as the FNV-1a-32 of its line's text, in hex
//
// BOS as the model says, like llama-tokenize.
#include <llama.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

static std::string unescaped(const std::string& line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
      continue;
    }
    switch (line[++i]) {
      case 'n':
        out += '\n';
        break;
      case 'r':
        out += '\r';
        break;
      case 't':
        out += '\t';
        break;
      case 'x':
        out += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16));
        i += 2;
        break;
      default:
        out += line[i];
    }
  }
  return out;
}

static std::string ids(const llama_vocab* vocab, const std::string& text, bool parse_special) {
  std::vector<llama_token> tokens(3 * text.size() + 16);  // an invalid byte can become three tokens
  const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                               static_cast<int>(tokens.size()), llama_vocab_get_add_bos(vocab), parse_special);
  std::string line;
  for (int i = 0; i < n; ++i) line += (i > 0 ? " " : "") + std::to_string(tokens[i]);
  return line;
}

static std::string fnv(const std::string& text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08x", hash);
  return hex;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model* model = llama_model_load_from_file(argv[1], params);
  if (model == nullptr) return 1;
  const llama_vocab* vocab = llama_model_get_vocab(model);
  std::ifstream corpus(argv[2]);
  const bool hashed = std::string(argv[3]) == "fnv";
  for (std::string line; std::getline(corpus, line);) {
    const std::string text = unescaped(line);
    const std::string plain = ids(vocab, text, false), parsed = ids(vocab, text, true);
    std::printf("%s", (hashed ? fnv(plain) : plain).c_str());
    if (parsed != plain) std::printf("|%s", (hashed ? fnv(parsed) : parsed).c_str());
    std::printf("\n");
  }
}

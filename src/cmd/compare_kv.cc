#include "cmd/compare_kv.h"

#include <algorithm>
#include <cstdio>

#include "api/json_text.h"
#include "cmd/progress.h"
#include "tools/kv_compare.h"

namespace pagoda::cmd {
namespace {

using tools::KvComparer;
using tools::KvQuality;
using tools::KvVariant;

constexpr int kDefaultWindow = 2048;
constexpr int kDecodeContext = 2048;
constexpr int kYardstickTokens = 4096;
constexpr size_t kNameColumns = 12;
constexpr int64_t kVerdictTokens = 2000;  // of fewer, the figures are mostly chance
constexpr size_t kMostFormats = 8;        // each holds a cache and a step's logits

// What is measured, in the order of the table.
struct Report {
  std::string model;
  int window_tokens = 0;
  size_t n_windows = 0;
  std::vector<KvQuality> formats;  // the reference first
  KvQuality noise;                 // the reference with other roundings
  KvQuality yardstick;             // the reference in other arithmetic, on the first windows
  bool chunks_change_bits = false;
  int decode_context = 0;  // 0: not measured
};

Error named(const char* option, Error error) { return {error.code, error.message, option}; }

// Separated by commas; or by semicolons, where one of them is a table of layers, which has commas and stars itself.
Result<std::vector<std::string>> formats_of(const std::string& list) {
  const char separator = list.find_first_of(";*") == std::string::npos ? ',' : ';';
  std::vector<std::string> formats;
  for (size_t begin = 0; begin <= list.size();) {
    const std::string name = list.substr(begin, list.find(separator, begin) - begin);
    begin += name.size() + 1;
    if (std::ranges::find(formats, name) != formats.end() || name == "bf16") continue;  // bf16 is always there
    formats.push_back(name);
  }
  if (formats.size() > kMostFormats) {
    return fail(
        Error{ErrorCode::kInvalidArgument,
              fmt::format("{} formats beside bf16, and {} can be compared at once", formats.size(), kMostFormats),
              "--compare-kv"});
  }
  return formats;
}

kernels::Arithmetic other_arithmetic(kernels::Arithmetic arithmetic) {
  return arithmetic == kernels::Arithmetic::kF32 ? kernels::Arithmetic::kInt8 : kernels::Arithmetic::kF32;
}

// A part of the whole bar.
tools::KvProgress part_of(ProgressBar& bar, double begin, double end) {
  return [&bar, begin, end](double done, std::string_view what) { bar.show(begin + done * (end - begin), what); };
}

Status measure(KvComparer& comparer, const std::vector<KvVariant>& formats, KvComparer::Windows windows,
               Report& report) {
  ProgressBar bar;
  std::vector<KvVariant> variants = formats;
  variants.push_back(comparer.noise());
  const size_t n_yardstick =
      std::clamp<size_t>(static_cast<size_t>(kYardstickTokens / report.window_tokens), 1, windows.size());
  TRY_ASSIGN(report.formats, comparer.compare(variants, windows, part_of(bar, 0, 0.8)));
  report.noise = report.formats.back();
  report.formats.pop_back();
  const auto other = other_arithmetic(comparer.arithmetic());
  const KvVariant yardstick{fmt::format("in {}", to_string(other)), "bf16", other};
  TRY_ASSIGN(const auto yardsticks,
             comparer.compare(std::span(&yardstick, 1), windows.first(n_yardstick), part_of(bar, 0.8, 0.95)));
  report.yardstick = yardsticks[1];
  TRY_ASSIGN(report.chunks_change_bits, comparer.chunks_change_bits(windows[0]));
  if (report.window_tokens <= KvComparer::kDecodeTokens) return {};
  report.decode_context = std::min(kDecodeContext, report.window_tokens);
  const auto window = std::span(windows[0]).first(static_cast<size_t>(report.decode_context));
  TRY_ASSIGN(const auto rates, comparer.decode_rates(formats, window, part_of(bar, 0.95, 1)));
  for (size_t i = 0; i < rates.size(); ++i) report.formats[i].decode_tokens_per_s = rates[i];
  return {};
}

bool passes(const KvQuality& quality, const KvQuality& noise) {
  return engine::passes(engine::beyond(quality.distance, noise.distance));
}

void print_row(const KvQuality& q, const char* verdict, int width) {
  const std::string rate = q.decode_tokens_per_s > 0 ? fmt::format("{:.1f}", q.decode_tokens_per_s) : "";
  std::printf("%-*s %11zu %9.4f   %+7.3f ± %.3f %%   %.6f ± %.6f  %9.5f %7.2f ± %.2f %% %9s  %s\n", width,
              q.format.c_str(), q.bytes_per_token, q.ppl, q.distance.delta_ppl * 100, q.delta_ppl_error * 100,
              q.distance.mean_kl, q.mean_kl_error, q.kl_999, q.distance.same_top * 100, q.same_top_error * 100,
              rate.c_str(), verdict);
}

void print_table(const Report& report) {
  const KvQuality& reference = report.formats[0];
  size_t longest = kNameColumns;
  for (const KvQuality& quality : report.formats) longest = std::max(longest, quality.format.size());
  const auto width = static_cast<int>(longest);
  std::printf("%s, %s arithmetic: %zu window%s of %d tokens, %lld predicted\n\n", report.model.c_str(),
              reference.arithmetic.c_str(), report.n_windows, report.n_windows == 1 ? "" : "s", report.window_tokens,
              static_cast<long long>(reference.n_rows));
  std::printf("%-*s %11s %9s   %-17s   %-19s  %9s %16s %9s  gate\n", width, "K and V", "bytes/token", "PPL",
              "  change of PPL", "mean KL", "99.9 % KL", "same top token", "tok/s");
  std::printf("%-*s %11zu %9.4f %81.1f\n", width, reference.format.c_str(), reference.bytes_per_token, reference.ppl,
              reference.decode_tokens_per_s);
  for (const KvQuality& quality : std::span(report.formats).subspan(1))
    print_row(quality, passes(quality, report.noise) ? "passes" : "fails", width);
  print_row(report.noise, "", width);
  print_row(report.yardstick, "", width);
  const engine::KvGate gate;
  std::printf(
      "\ngate    PPL at most %.1f %% up; beyond the noise, mean KL at most %.3f and same top token at least %.1f %%\n"
      "noise   bf16 with other roundings; in other chunks it %s\n"
      "%-7s bf16 in %s instead of %s arithmetic, on %lld tokens: what the arithmetic costs\n"
      "tok/s   one stream, decoding with %d tokens of context        ± is one standard error\n",
      gate.delta_ppl * 100, gate.mean_kl, gate.same_top * 100,
      report.chunks_change_bits ? "CHANGES BITS, which is a bug" : "gives the same bits",
      report.yardstick.format.c_str(), report.yardstick.arithmetic.c_str(), reference.arithmetic.c_str(),
      static_cast<long long>(report.yardstick.n_rows), report.decode_context);
  if (reference.n_rows < kVerdictTokens) {
    std::printf("note    %lld predicted tokens are too few for a verdict: take a text of %lld or more\n",
                static_cast<long long>(reference.n_rows), static_cast<long long>(kVerdictTokens));
  }
}

// Without `noise`, no verdict: of what is no format to choose.
std::string quality_json(const KvQuality& q, const KvQuality* noise) {
  const char* verdict = noise == nullptr ? "null" : passes(q, *noise) ? "true" : "false";
  const bool is_timed = q.decode_tokens_per_s > 0;
  return fmt::format(
      "{{\"format\":{},\"arithmetic\":{},\"bytes_per_token\":{},\"tokens\":{},\"ppl\":{:.9g},\"delta_ppl\":{:.6g},"
      "\"delta_ppl_error\":{:.3g},\"mean_kl\":{:.6g},\"mean_kl_error\":{:.3g},\"kl_99_9\":{:.6g},\"same_top\":{:.6g},"
      "\"same_top_error\":{:.3g},"
      "\"decode_tokens_per_s\":{},\"passes\":{}}}",
      api::json_string(q.format), api::json_string(q.arithmetic), q.bytes_per_token, q.n_rows, q.ppl,
      q.distance.delta_ppl, q.delta_ppl_error, q.distance.mean_kl, q.mean_kl_error, q.kl_999, q.distance.same_top,
      q.same_top_error, is_timed ? fmt::format("{:.4g}", q.decode_tokens_per_s) : "null", verdict);
}

void print_json(const Report& report) {
  const engine::KvGate gate;
  std::string formats;
  for (const KvQuality& quality : report.formats)
    formats += (formats.empty() ? "" : ",") + quality_json(quality, &report.noise);
  std::printf(
      "{\"model\":%s,\"window_tokens\":%d,\"windows\":%zu,\"decode_context_tokens\":%d,\"formats\":[%s],\"noise\":%s,"
      "\"yardstick\":%s,"
      "\"chunks_change_bits\":%s,\"gate\":{\"delta_ppl\":%g,\"mean_kl\":%g,\"same_top\":%g}}\n",
      api::json_string(report.model).c_str(), report.window_tokens, report.n_windows, report.decode_context,
      formats.c_str(), quality_json(report.noise, nullptr).c_str(), quality_json(report.yardstick, nullptr).c_str(),
      report.chunks_change_bits ? "true" : "false", gate.delta_ppl, gate.mean_kl, gate.same_top);
}

}  // namespace

Status compare_kv(const Options& options, const engine::EngineConfig& config, const EvalText& text) {
  if (!options.memory.empty()) {
    return fail(Error{ErrorCode::kInvalidArgument,
                      "a comparison holds a cache and a step of every format beside the first; leave it out",
                      "--memory"});
  }
  TRY_ASSIGN(const std::vector<std::string> formats, formats_of(options.compare_kv));
  engine::EngineConfig sized = config;
  sized.context_tokens = options.context_tokens > 0 ? options.context_tokens : kDefaultWindow;
  TRY_ASSIGN(KvComparer comparer, KvComparer::load(sized));
  std::vector<KvVariant> variants;
  for (const std::string& format : formats) {
    if (const Status known = comparer.check(format); !known) return fail(named("--compare-kv", known.error()));
    variants.push_back(comparer.variant(format));
    if (format == "auto") variants.back().format = config.kv_format;  // as probed
  }
  Report report;
  report.window_tokens = comparer.context_tokens();
  const auto windows = tools::windows_of(text.tokens, text.bos, report.window_tokens);
  if (!windows) return fail(named(options.ids_file.empty() ? "--text" : "--ids", windows.error()));
  report.n_windows = windows->size();
  report.model = config.model_path.stem().string();
  TRY(measure(comparer, variants, *windows, report));
  options.json ? print_json(report) : print_table(report);
  return {};
}

}  // namespace pagoda::cmd

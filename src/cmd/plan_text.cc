#include "cmd/plan_text.h"

#include <algorithm>

#include "tools/terminal_plot.h"

namespace pagoda::cmd {
namespace {

using tools::Bound;
using tools::FormatPlan;
using tools::Plan;
using tools::PlanReport;

constexpr int kPlotWidth = 64;
constexpr int kPlotHeight = 14;

// Two decimals at most, none that say nothing.
std::string short_number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string scaled(double value, double step, std::initializer_list<const char*> units) {
  const auto* unit = units.begin();
  for (; value >= step && unit + 1 != units.end(); ++unit) value /= step;
  return short_number(value) + " " + *unit;
}
std::string decimal(uint64_t bytes) {
  return scaled(static_cast<double>(bytes), 1000, {"B", "kB", "MB", "GB", "TB", "PB"});
}
std::string binary(uint64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"});
}

std::string ops_text(double ops) { return fmt::format("{:.3g}", ops); }
std::string seconds_text(double s) {
  if (s < 1) return fmt::format("{:.3g} ms", s * 1e3);
  return s < 1000 ? fmt::format("{:.3g} s", s) : fmt::format("{:.3g} h", s / 3600);
}
std::string rate_text(double rate) { return rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate); }

std::string model_text(const Plan& plan) {
  const weights::ModelConfig& c = plan.model.config;
  std::string out = fmt::format("{} ({})\n", plan.model.name, plan.model.source);
  out += fmt::format("{:.4g} million parameters in {}: {} of weights in memory\n",
                     static_cast<double>(plan.model.parameters()) / 1e6, plan.model.weight_types(),
                     both_sizes(plan.weight_bytes));
  out += fmt::format(
      "{} layers, {}: {} heads on {} KV heads of {}, width {}, MLP {}, vocabulary {}, trained for {} tokens\n",
      c.n_layers, tools::attention_word(c), c.n_heads, c.n_kv_heads, c.head_dim, c.embed_dim, c.ffn_dim, c.vocab_size,
      c.context_length);
  if (c.sliding_window > 0) {
    out += fmt::format("{} of the layers see a window of {} tokens: they keep that and no more, in blocks of {}\n",
                       c.n_local_layers(), c.sliding_window, kv::kBlockTokens);
  }
  out += fmt::format("KV bytes per token = 2 x {} layers x {} KV heads x {} x bytes per element + scales\n", c.n_layers,
                     c.n_kv_heads, c.head_dim);
  return out;
}

std::string memory_text(const Plan& plan) {
  const tools::PlanRequest& r = plan.request;
  std::string choice = r.serving.memory_bytes ? plan.fit.choice() + "\n" : "";
  if (const size_t half = choice.find("; "); half != std::string::npos) choice.replace(half, 2, "\n  ");
  const std::string as_they_come =
      fmt::format("{} while {} sequences sample at once + {} of clients' requests and unread answers",
                  decimal(plan.fit.burst_bytes), plan.fit.schedule.max_running, decimal(plan.fit.traffic_bytes));
  const std::string resident =
      fmt::format("{} of weights + {} of overhead", decimal(plan.weight_bytes), decimal(plan.fit.overhead_bytes));
  if (r.kv_memory_bytes) {
    return fmt::format("\nKV memory: {} (--kv-memory), beside {}\n  + {}: at most, as they come\n",
                       both_sizes(plan.room_bytes), resident, as_they_come);
  }
  if (plan.short_bytes > 0) {
    return fmt::format(
        "\nmemory: {} is too little: {} + {} of KV\n  + {}\n  lack {}; take more memory or smaller weights\n",
        both_sizes(r.memory_bytes), resident, decimal(plan.fit.kv_bytes), as_they_come, both_sizes(plan.short_bytes));
  }
  return fmt::format("\nmemory: {} = {} + {} of KV\n  + {}: at most, as they come\n{}", both_sizes(r.memory_bytes),
                     resident, decimal(plan.room_bytes), as_they_come, choice);
}

std::string formats_text(const Plan& plan) {
  const bool has_windows = plan.model.config.sliding_window > 0;
  const bool has_disk = plan.request.disk_bytes.has_value();
  const int n_tokens = plan.request.context_tokens;
  std::string out =
      fmt::format("\nOne sequence of {} tokens{}, and what KV memory holds of them\n", n_tokens,
                  n_tokens > plan.model.config.context_length ? " (more than the model was trained for)" : "");
  out += fmt::format("{:<6} {:>9} {}{:>14} {:>10} {:>10} {:>9} {:>11}{}\n", "format", "B/token",
                     has_windows ? fmt::format("{:>10} ", "in window") : "", "bytes", "GB", "GiB", "sequences",
                     "tokens", has_disk ? fmt::format(" {:>11} {:>7}", "on disk", "of all") : "");
  for (const FormatPlan& f : plan.formats) {
    out += fmt::format("{:<6} {:>9} {}{:>14} {:>10} {:>10} {:>9} {:>11}", f.name, f.bytes_per_token,
                       has_windows ? fmt::format("{:>10} ", f.window_bytes_per_token) : "", f.sequence_bytes,
                       decimal(f.sequence_bytes), binary(f.sequence_bytes), f.sequences, f.memory_tokens);
    if (has_disk) {
      const double all = static_cast<double>(*f.disk_tokens) + static_cast<double>(f.memory_tokens);
      out += fmt::format(" {:>11} {:>5.1f} %", *f.disk_tokens,
                         all > 0 ? 100 * static_cast<double>(*f.disk_tokens) / all : 0.0);
    }
    out += f.note.empty() ? "\n" : fmt::format("  {}\n", f.note);
  }
  out += "f16: Pagoda stores 16 bits as bf16";
  out += has_disk ? fmt::format("; on disk: what {} hold\n", both_sizes(*plan.request.disk_bytes)) : "\n";
  if (has_windows)
    out += fmt::format("While it is prefilled in chunks of {} tokens, a sequence takes up to {} in {}.\n",
                       plan.request.chunk_tokens, decimal(plan.formats.back().prefill_bytes), plan.formats.back().name);
  return out;
}

std::string sharing_text(const Plan& plan) {
  std::string out = fmt::format("\nThe same model with other KV heads, {} tokens\n", plan.request.context_tokens);
  for (const tools::SharingPlan& s : plan.sharing) {
    out += fmt::format("{:<4} {:>4} KV heads", s.name, s.n_kv_heads);
    for (size_t i = 0; i < s.sequence_bytes.size(); ++i) {
      out += fmt::format("   {} {:>11} = {:<11}", tools::kSharingFormats[i], decimal(s.sequence_bytes[i]),
                         binary(s.sequence_bytes[i]));
    }
    if (s.is_this) out += " <- this model";
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

std::string table_text(const Plan& plan) {
  std::string out = fmt::format("\nKV of a batch in {}, by context; x: more than KV memory has\n{:>9}",
                                plan.request.format, "context");
  for (const int batch : tools::kBatches) out += fmt::format(" {:>12}", batch);
  out += "\n";
  for (const tools::BatchRow& row : plan.batches) {
    out += fmt::format("{:>9}", row.context_tokens);
    for (const tools::BatchCell& cell : row.cells)
      out += fmt::format(" {:>12}", binary(cell.bytes) + (cell.fits ? "  " : " x"));
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  out += "\n";
  for (const tools::UserPlan& u : plan.users) {
    out += fmt::format("{:>5} user{} at once: at most {} tokens each{}\n", u.users, u.users == 1 ? " " : "s",
                       u.context_tokens,
                       u.context_tokens < u.memory_tokens
                           ? fmt::format(", what the model was trained for (memory holds {}{})",
                                         u.memory_tokens == tools::kMostTokens ? "more than " : "", u.memory_tokens)
                           : "");
  }
  out += fmt::format("at {} tokens each: at most {} users\n", plan.request.context_tokens, plan.largest_count);
  return out;
}

std::string bounds_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  if (!plan.request.rates)
    return fmt::format("\nSpeed: no bounds, bandwidth and operations were {}\n", report.rates_source);
  std::string out = fmt::format("\nSpeed at most, at {} tokens of context in {} ({} arithmetic; {:.1f} GB/s, {})\n",
                                plan.request.context_tokens, plan.request.format, to_string(plan.request.arithmetic),
                                plan.request.rates->read_bytes_per_s / 1e9, report.rates_source);
  for (const tools::BoundPlan& b : plan.bounds) {
    out += fmt::format("{:<13} {:>9} tok/s  bound by {:<10}  {} read, {} operations a step\n", b.work,
                       rate_text(b.tokens_per_s), b.bound == Bound::kBandwidth ? "bandwidth" : "operations",
                       decimal(static_cast<uint64_t>(b.cost.bytes)), ops_text(b.cost.operations()));
  }
  return out;
}

std::string ratio_text(double above, double below) { return below > 0 ? rate_text(above / below) : "-"; }

std::string generation_text(const PlanReport& report) {
  const bool timed = report.plan.request.rates.has_value();
  std::string out = fmt::format(
      "\nGenerating N tokens, without a KV cache and with one (D = {}, operations of the whole model)\n"
      "{:>8} {:>12} {:>10} {:>8}  {:>10} {:>10} {:>8}{}\n",
      report.plan.model.config.embed_dim, "N", "N2D2+N3D", "ND2+N2D", "ratio", "without", "with", "ratio",
      timed ? fmt::format("  {:>10} {:>10} {:>8}", "at least", "at least", "ratio") : "");
  for (const tools::GenerationCost& g : report.generation) {
    out +=
        fmt::format("{:>8} {:>12} {:>10} {:>8}  {:>10} {:>10} {:>8}", g.n_tokens, ops_text(g.uncached.textbook),
                    ops_text(g.cached.textbook), ratio_text(g.uncached.textbook, g.cached.textbook),
                    ops_text(g.uncached.ops()), ops_text(g.cached.ops()), ratio_text(g.uncached.ops(), g.cached.ops()));
    if (timed) {
      out += fmt::format("  {:>10} {:>10} {:>8}", seconds_text(g.uncached.seconds), seconds_text(g.cached.seconds),
                         ratio_text(g.uncached.seconds, g.cached.seconds));
    }
    out += "\n";
  }
  return out;
}

std::string plot_text(const PlanReport& report) {
  using Style = tools::PlotCurve::Style;
  const bool timed = report.plan.request.rates.has_value();
  tools::PlotCurve without{'#', Style::kLine, {}}, with{'*', Style::kLine, {}};
  for (const tools::GenerationCost& g : report.generation) {
    without.points.push_back({static_cast<double>(g.n_tokens), timed ? g.uncached.seconds : g.uncached.ops()});
    with.points.push_back({static_cast<double>(g.n_tokens), timed ? g.cached.seconds : g.cached.ops()});
  }
  std::vector<tools::PlotCurve> curves{without, with};
  std::string legend = "# without a cache   * with the cache";
  if (timed && !report.measured.empty()) {
    tools::PlotCurve off{'O', Style::kPoints, {}}, on{'o', Style::kPoints, {}};
    for (const tools::MeasuredGeneration& m : report.measured) {
      off.points.push_back({static_cast<double>(m.n_tokens), m.uncached_s});
      on.points.push_back({static_cast<double>(m.n_tokens), m.cached_s});
    }
    curves.push_back(off);
    curves.push_back(on);
    legend += "   O, o measured";
  }
  return fmt::format("\n{}{:>12}{}\n", tools::plot(curves, kPlotWidth, kPlotHeight, timed ? "s" : "op"), "", legend);
}

std::string measured_text(const PlanReport& report) {
  if (report.measured.empty()) return {};
  std::string out = fmt::format(
      "\nMeasured: --kv-cache off and on, one stream, prompt of one token; in brackets the least time\n{:>8} {:>22} "
      "{:>22} "
      "{:>8}\n",
      "N", "without", "with", "ratio");
  for (const tools::MeasuredGeneration& m : report.measured) {
    const auto cost = std::ranges::find(report.generation, m.n_tokens, &tools::GenerationCost::n_tokens);
    const auto timed = [&](double measured, double least) {
      return least > 0 ? fmt::format("{} ({})", seconds_text(measured), seconds_text(least)) : seconds_text(measured);
    };
    const bool known = cost != report.generation.end();
    out += fmt::format("{:>8} {:>22} {:>22} {:>8}  {}\n", m.n_tokens,
                       timed(m.uncached_s, known ? cost->uncached.seconds : 0),
                       timed(m.cached_s, known ? cost->cached.seconds : 0), ratio_text(m.uncached_s, m.cached_s),
                       m.same_tokens ? "the same tokens" : "OTHER TOKENS");
  }
  return out;
}

std::string verified_text(const PlanReport& report) {
  if (report.verified.empty()) return {};
  std::string out = fmt::format("\nPlan and reality, bytes\n{:<38} {:>13} {:>13}\n", "", "planned", "measured");
  for (const tools::VerifiedFigure& f : report.verified) {
    out += fmt::format(
        "{:<38} {:>13} {:>13}  {}\n", f.what, f.planned_bytes, f.measured_bytes,
        f.agrees() ? (f.low_bytes == f.high_bytes ? "equal" : fmt::format("within {} to {}", f.low_bytes, f.high_bytes))
                   : fmt::format("NOT within {} to {}", f.low_bytes, f.high_bytes));
  }
  return out;
}

}  // namespace

std::string both_sizes(uint64_t bytes) {
  if (bytes < 1000) return decimal(bytes);
  return decimal(bytes) + " = " + binary(bytes);
}

std::string plan_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  return model_text(plan) + memory_text(plan) + formats_text(plan) + sharing_text(plan) + table_text(plan) +
         bounds_text(report) + generation_text(report) + plot_text(report) + measured_text(report) +
         verified_text(report);
}

}  // namespace pagoda::cmd

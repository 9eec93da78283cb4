#include "tools/terminal_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace pagoda::tools {
namespace {

constexpr int kLabelWidth = 10;

struct Axis {
  double low = std::numeric_limits<double>::infinity();  // logarithms
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, std::log10(value));
    high = std::max(high, std::log10(value));
  }
  // Which of n cells a value lies in.
  int cell(double value, int n) const {
    if (high <= low) return 0;
    return static_cast<int>(std::lround((std::log10(value) - low) / (high - low) * (n - 1)));
  }
};

bool is_shown(PlotPoint p) { return p.x > 0 && p.y > 0 && std::isfinite(p.x) && std::isfinite(p.y); }

std::string label(double value, std::string_view unit) {
  constexpr const char* kPrefixes[] = {"n", "u", "m", "", "k", "M", "G", "T", "P", "E"};
  const double power = std::floor(std::log10(value) / 3 + 1e-9);
  const double index = power + 3;
  if (index < 0 || index >= static_cast<double>(std::size(kPrefixes))) return fmt::format("{:.0e} {}", value, unit);
  return fmt::format("{:.3g} {}{}", value / std::pow(1000, power), kPrefixes[static_cast<int>(index)], unit);
}

void draw(const PlotCurve& curve, const Axis& x, const Axis& y, std::vector<std::string>& rows) {
  const int width = static_cast<int>(rows.front().size());
  const int height = static_cast<int>(rows.size());
  const auto put = [&](int column, int row) {
    rows[static_cast<size_t>(height - 1 - row)][static_cast<size_t>(column)] = curve.mark;
  };
  int last_column = -1;
  int last_row = 0;
  for (const PlotPoint& point : curve.points) {
    if (!is_shown(point)) continue;
    const int column = x.cell(point.x, width);
    const int row = y.cell(point.y, height);
    if (curve.style == PlotCurve::Style::kLine && last_column >= 0) {
      for (int c = last_column + 1; c < column; ++c)
        put(c, last_row + (row - last_row) * (c - last_column) / (column - last_column));
    }
    put(column, row);
    last_column = column;
    last_row = row;
  }
}

}  // namespace

std::string plot(const std::vector<PlotCurve>& curves, int width, int height, std::string_view unit) {
  Axis x, y;
  double left = std::numeric_limits<double>::infinity(), right = 0, bottom = left, top = 0;
  for (const PlotCurve& curve : curves) {
    for (const PlotPoint& point : curve.points) {
      if (!is_shown(point)) continue;
      x.add(point.x);
      y.add(point.y);
      left = std::min(left, point.x);
      right = std::max(right, point.x);
      bottom = std::min(bottom, point.y);
      top = std::max(top, point.y);
    }
  }
  if (right <= 0 || width < 2 || height < 2) return {};
  std::vector<std::string> rows(static_cast<size_t>(height), std::string(static_cast<size_t>(width), ' '));
  for (const PlotCurve& curve : curves) draw(curve, x, y, rows);
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string text = i == 0 ? label(top, unit) : i + 1 == rows.size() ? label(bottom, unit) : std::string();
    rows[i].erase(rows[i].find_last_not_of(' ') + 1);
    out += fmt::format("{:>{}} |{}\n", text, kLabelWidth, rows[i]);
  }
  const std::string first = fmt::format("{:.0f}", left);
  const std::string last = fmt::format("{:.0f}", right);
  out += fmt::format("{:>{}} +{}\n", "", kLabelWidth, std::string(static_cast<size_t>(width), '-'));
  out += fmt::format("{:>{}}  {}{:>{}} tokens\n", "", kLabelWidth, first, last,
                     std::max(1, width - static_cast<int>(first.size())));
  return out;
}

}  // namespace pagoda::tools

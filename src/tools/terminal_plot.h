// A plot of some curves in plain characters, both axes logarithmic, for terminals and logs. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pagoda::tools {

struct PlotPoint {
  double x = 0;
  double y = 0;
};
struct PlotCurve {
  enum class Style : uint8_t { kLine, kPoints };  // kLine: joined where the points leave columns between them
  char mark = '*';
  Style style = Style::kLine;
  std::vector<PlotPoint> points;  // by x; those that are not above 0 are left out
};

// `height` lines of curve over an axis with x's ends, each ended by a newline; labels of y (with `unit`) stand left of the first and last.
// Later curves cover earlier ones. Nothing where there is no point.
std::string plot(const std::vector<PlotCurve>& curves, int width, int height, std::string_view unit);

}  // namespace pagoda::tools

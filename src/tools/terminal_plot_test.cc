#include "tools/terminal_plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace pagoda::tools {
namespace {

using Style = PlotCurve::Style;

TEST(TerminalPlot, StraightLinesInLogarithms) {
  const PlotCurve line{'*', Style::kLine, {{1, 1}, {10, 10}, {100, 100}}};
  EXPECT_EQ(plot({line}, 5, 5, "s"),
            "     100 s |    *\n"
            "           |   *\n"
            "           |  *\n"
            "           | *\n"
            "       1 s |*\n"
            "           +-----\n"
            "            1 100 tokens\n");
}

TEST(TerminalPlot, LaterCurvesCoverEarlierOnesAndPointsAreNotJoined) {
  const PlotCurve line{'#', Style::kLine, {{1, 1e3}, {100, 1e3}}};
  const PlotCurve points{'o', Style::kPoints, {{1, 1}, {100, 1e3}}};
  const std::string text = plot({line, points}, 9, 3, "op");
  EXPECT_EQ(std::ranges::count(text, '#'), 8);
  EXPECT_EQ(std::ranges::count(text, 'o'), 2 + 3);  // "op" twice and "tokens"
}

TEST(TerminalPlot, WhatHasNoLogarithmIsLeftOut) {
  EXPECT_EQ(plot({}, 10, 5, "s"), "");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(plot({{'*', Style::kLine, {{0, 1}, {1, 0}, {-1, 5}, {1, infinity}}}}, 10, 5, "s"), "");
  EXPECT_NE(plot({{'*', Style::kLine, {{1, 5}}}}, 10, 5, "s"), "");  // one point is a plot
}

TEST(TerminalPlot, AnyNumbersStayInside) {
  for (const double y : {1e-300, 1e-12, 1e12, 1e300}) {
    const std::string text = plot({{'*', Style::kLine, {{1, 1}, {1e6, y}}}}, 20, 4, "s");
    EXPECT_EQ(std::ranges::count(text, '\n'), 6);
  }
}

}  // namespace
}  // namespace pagoda::tools

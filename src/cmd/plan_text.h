// A plan for people: tables and a plot as text, 120 columns at most. Pure.
#pragma once

#include <string>

#include "tools/planner_json.h"

namespace pagoda::cmd {

std::string plan_text(const tools::PlanReport& report);

// "1.07 GB = 1 GiB", "512 B": powers of 1,000 and of 1,024.
std::string both_sizes(uint64_t bytes);

}  // namespace pagoda::cmd

// A plan as JSON: one object, bytes as integers, names as in planner.h. Pure.
#pragma once

#include <string>
#include <vector>

#include "tools/planner_generation.h"
#include "tools/planner_reality.h"

namespace pagoda::tools {

// What belongs to one answer of `pagoda plan`.
struct PlanReport {
  Plan plan;
  std::string rates_source;  // "measured", "given", "not measured"
  std::vector<GenerationCost> generation;
  std::vector<MeasuredGeneration> measured;  // empty: not asked for
  std::vector<VerifiedFigure> verified;      // empty: not asked for
};

std::string to_json(const PlanReport& report);

// "MHA", "GQA" or "MQA".
const char* attention_word(const weights::ModelConfig& config);

}  // namespace pagoda::tools

// Reads the cost lines of the registry, so that a test can hold them against schedules.
#pragma once

#include <string>
#include <string_view>

namespace ringcoll::simulator {

/// The value of "2n(P-1)/P", with lg, ceil, floor and ^.
double evaluate(std::string_view formula, double n, double ranks);
/// The formulas of a cost line "steps S, bytes B".
struct CostLine {
  std::string steps;
  std::string bytes;
};
CostLine parse_cost_line(std::string_view line);

}  // namespace ringcoll::simulator

// Reads the cost lines of the registry, so that a test can hold them against schedules.
#pragma once

#include <string>
#include <string_view>

namespace ringcoll::simulator {

/// P and H; R = P/H.
struct Sizes {
  double ranks = 1;
  double hosts = 1;
};
/// The value of "2n(P-1)/P", with lg, ceil, floor and ^. "at most " before it is skipped.
double evaluate(std::string_view formula, double n, const Sizes& sizes);
/// The formulas of a cost line "steps S, bytes B".
struct CostLine {
  std::string steps;
  std::string bytes;
};
/// Whether a formula says how much there is at most, instead of exactly.
bool is_bound(std::string_view formula);
CostLine parse_cost_line(std::string_view line);

}  // namespace ringcoll::simulator

// see the header
#include "schedule/words_testing.h"

#include <fmt/core.h>

#include <ostream>

namespace ringcoll {
namespace simulator {

std::string words_of(Range range) { return fmt::format("[{}, {})", range.first, range.end()); }

std::string sending(const Step& step) {
  if (step.send_to == kNobody) return "sends nothing";
  return fmt::format("sends {} to rank {}", words_of(step.send), step.send_to);
}

std::string receiving(const Step& step) {
  if (step.recv_from == kNobody) return "receives nothing";
  const char* verb = step.combine == Combine::kCopy ? "receives" : "combines";
  return fmt::format("{} {} from rank {}", verb, words_of(step.recv), step.recv_from);
}

std::string where(Rank rank, size_t round) {
  return fmt::format("rank {}, round {}: ", rank, round);
}

}  // namespace simulator

using simulator::words_of;

void PrintTo(Range range, std::ostream* out) { *out << words_of(range); }

void PrintTo(Combine combine, std::ostream* out) {
  constexpr const char* kNames[] = {"copy", "reduce", "fold"};
  *out << kNames[static_cast<int>(combine)];
}

void PrintTo(const Step& step, std::ostream* out) {
  *out << simulator::sending(step) << ", " << simulator::receiving(step);
}

void PrintTo(const ScheduleRow& row, std::ostream* out) {
  *out << name_of(row.collective) << " " << row.name << " (" << name_of(row.where) << ")";
}

void PrintTo(Storage storage, std::ostream* out) {
  constexpr const char* kNames[] = {"nowhere", "input", "bank 0", "bank 1", "output"};
  *out << kNames[static_cast<int>(storage)];
}

void PrintTo(const Packing& packing, std::ostream* out) {
  *out << words_of(packing.range) << " to ";
  PrintTo(packing.to, out);
}

}  // namespace ringcoll

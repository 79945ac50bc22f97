// Schedules and plans in words, for the messages of tests that fail.
#pragma once

#include <iosfwd>
#include <string>

#include "schedule/plan.h"
#include "schedule/schedule.h"

namespace ringcoll {
namespace simulator {

/// "[4, 8)".
std::string words_of(Range range);
/// The two halves of a step: "sends [4, 8) to rank 3", "combines [0, 4) from rank 1".
std::string sending(const Step& step);
std::string receiving(const Step& step);
/// "rank 3, round 2: ".
std::string where(Rank rank, size_t round);

}  // namespace simulator

// What GoogleTest prints instead of bytes. Every test of the folder sees them, by way of
// simulator_testing.h: a type must not be printed in two ways in one program.
void PrintTo(Range range, std::ostream* out);
void PrintTo(Combine combine, std::ostream* out);
void PrintTo(const Step& step, std::ostream* out);
void PrintTo(const ScheduleRow& row, std::ostream* out);
void PrintTo(Storage storage, std::ostream* out);
void PrintTo(const Packing& packing, std::ostream* out);

}  // namespace ringcoll

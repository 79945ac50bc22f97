// A simulator for tests: runs the schedules, or the plans, of all ranks of a call in one thread.
//
// Elements are values that know what was combined into them: sums of one random 64-bit word for
// each rank and element (two different sets of contributions do not collide), and a float32 that is
// combined in the order of the operands (equal bits only by an equal tree).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/collectives.h"
#include "schedule/plan.h"
#include "schedule/schedule.h"
#include "schedule/words_testing.h"

namespace ringcoll::simulator {

/// Who can be sent what lies in the caller's memory; a host has two ranks.
enum class ZeroCopy { kNone, kAll, kOtherHosts };

/// One call of a collective, as all ranks see it.
struct Call {
  Collective collective = RC_BARRIER;
  Rank size = 1;
  Rank root = 0;  // where the collective has one
  /// As in Problem; the same for every rank, but for alltoall: there one list for each rank.
  std::vector<std::vector<int64_t>> counts;
  std::vector<std::vector<int64_t>> recv_counts;
  std::vector<Groups> levels;  // as in Problem
  /// As in Problem. Ranks are positions elsewhere in this header.
  std::vector<Rank> positions;

  /// The rank of the communicator that is at a position.
  Rank number_of(Rank position) const;
  Problem problem(Rank rank) const;
  int64_t space(Rank rank) const;
  Ends ends(Rank rank, ZeroCopy zero_copy = ZeroCopy::kNone) const;
  std::string name() const;

 private:
  Ends ends_of(Rank rank) const;
};

/// A call with one list of counts; for alltoall, rank r sends counts[(r + to) % size] to each `to`.
Call make_call(Collective collective, Rank size, Rank root, std::vector<int64_t> counts);

/// Positions for ranks of a communicator that are not in the order of the ring.
std::vector<Rank> shuffled_positions(Rank size);

/// Clusters of `size` ranks on which a row is tried, as in Problem::levels: none for rows that do
/// not look at them; else hosts of one size, of many, and in leaves.
std::vector<std::vector<Groups>> clusters(const ScheduleRow& row, Rank size);
/// Hosts of `ranks` ranks (the last may have fewer) in leaves of `hosts` hosts; 0 hosts: no leaves.
std::vector<Groups> cluster_of(Rank size, Rank ranks, Rank hosts);

std::vector<Schedule> make_schedules(const ScheduleRow& row, const Call& call);
/// How plans are made and run.
struct PlanOptions {
  bool in_place = false;  // the output of an element is the memory of its input
  bool pack_all = false;  // the input is gone after packing
  unsigned shuffle = 0;   // which rank runs ahead of which
  ZeroCopy zero_copy = ZeroCopy::kNone;
  std::optional<Ends::Copying> copying = {};  // with zero_copy: as in Ends
  bool sends_early = false;                   // what may go before its round does
};
std::vector<Plan> make_plans(const Call& call, const std::vector<Schedule>& schedules,
                             const PlanOptions& options);

/// Runs schedules round by round. "" if every message of a round is received in that round, the
/// results are right, and copies of a result are equal bit by bit on all ranks; else what is wrong.
std::string check_schedules(const Call& call, const std::vector<Schedule>& schedules);

/// Runs plans on memory without copying messages, unless told that they are copied when they are
/// sent: a receiver reads the sender's bank when it gets there, long after the sender has gone on.
/// "" if the results are right, each rank waits only for sends of earlier rounds, and nothing
/// overwrites what a peer may still read; else what is wrong.
std::string check_plans(const Call& call, const std::vector<Plan>& plans,
                        const PlanOptions& options);

}  // namespace ringcoll::simulator

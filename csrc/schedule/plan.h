// A plan is a schedule lowered onto memory: for every step, where its operands lie and where its
// result goes.
//
// An element can lie in the caller's input, in the caller's output or in one of two banks of the
// arena. Lowering reads the whole schedule, so that payload is copied as rarely as possible:
//  - A message lies in the arena. It lies in the caller's memory instead if all its receivers
//    permit that (Ends::zero_copy).
//  - An input that is sent before anything was combined into it is packed (copied to a bank), or
//    sent from the caller's memory.
//  - The first combination of a range has three operands and reads the input where it lies. So an
//    input that is not sent is not packed.
//  - A final value that is not sent any more goes straight from the peer's memory to the output.
//  - A final value that is still to be sent goes to the arena, and to the output while in cache.
//  - A range that is sent in a round is not overwritten in that round: the result goes to the other
//    bank. A range sent earlier is overwritten once that send has completed (`after`).
// Lowering is pure: it has no pointers and no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// Where an element of a call lies.
enum class Storage : uint8_t { kNowhere, kInput, kBank0, kBank1, kOutput };

/// One received range of a step. If the elements of a step's range lie in different storages, the
/// step has several receipts in rising order of `range`. Together they cover Action::recv.
struct Receipt {
  Range range;
  Combine combine = Combine::kCopy;
  Storage operand = Storage::kNowhere;  // this rank's operand of a combination
  Storage result = Storage::kNowhere;   // kNowhere: the value is not needed
  bool output_too = false;              // the result is also copied to the output
  /// Wait for completion of the send of this earlier round before the result is written; -1: no
  /// wait. One wait is enough, as lowering overwrites nothing that several peers may read.
  int after = -1;
};

struct Action {
  Rank send_to = kNobody;
  Range send;
  Storage send_from = Storage::kNowhere;  // every message lies in one storage
  Rank recv_from = kNobody;               // this rank: its own input is combined
  Range recv;
  Storage own_input = Storage::kNowhere;  // where that own input lies
  std::vector<Receipt> receipts;
};

/// The send of a round, and the earliest round in which it may leave (earliest_sends()).
struct EarliestSend {
  size_t round;
  size_t earliest;
};

/// A copy of the input into a bank, before the first round.
struct Packing {
  Range range;
  Storage to = Storage::kBank0;

  bool operator==(const Packing&) const = default;
};

/// A copy of the input to the output. It may run at any time after all packing, since no receipt
/// writes its source or its destination.
struct Move {
  Range range;  // the source
  Storage from = Storage::kNowhere;
  int64_t to_first = 0;  // of the destination; differs from range.first in alltoall only
};

struct Plan {
  std::vector<Packing> pack;
  std::vector<Action> actions;  // one for each round, also for idle rounds
  /// Sorted by the earliest round in which a send may leave. Empty if each send leaves in its
  /// round.
  std::vector<EarliestSend> sends;
  std::vector<Move> moves;
  int64_t space = 0;       // elements of a bank
  bool two_banks = false;  // bank 1 is used
};

/// The parts of the index space that have an input, and those that have an output. Each is a list
/// of disjoint ranges in rising order. A range is contiguous in memory unless messages are copied
/// (`copying`). An element without
/// an input may not be sent or combined before it was received.
///
/// The input and output of one element may be the same memory: the output is written after the last
/// read of the input. Inputs and outputs of different elements may overlap only with `pack_all`.
struct Ends {
  std::vector<Range> inputs;
  std::vector<Range> outputs;
  /// By position: the ranks that can be sent a message from the caller's memory. Empty: none can.
  std::vector<bool> zero_copy;
  /// Messages to those ranks are copied when they are sent. A rank sends a round's message before
  /// it receives in that round, so the caller's memory may then be overwritten.
  /// A longer message is packed. The second limit is for messages that are better packed: one of
  /// which other messages send a part, too, since it is packed once for all, and one to a rank that
  /// sends nothing back, since memory goes to and fro only between ranks that exchange messages.
  struct Copying {
    int64_t most = 0;            // elements
    int64_t most_otherwise = 0;  // elements
  };
  std::optional<Copying> copying;  // none: they are read from the caller's memory
};

/// With `pack_all`, the input is read by packing only, since packing applies the prescale.
/// Throws Error(kInternal) if the schedule sends, combines or ends with elements that the rank does
/// not have, or if two banks do not suffice.
Plan lower(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank);

}  // namespace ringcoll

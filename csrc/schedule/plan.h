// A plan is a schedule lowered onto memory: for every step, where its operands lie and where its
// result goes.
//
// The storages of an element are the caller's input, two banks of the arena, and the caller's
// output. Lowering decides by looking at the whole schedule, so that payload moves as seldom as
// possible:
//  - what is sent lies in the arena, or in the caller's memory if all who are sent it can be sent
//    from there (Ends::zero_copy); what is sent before anything was combined into it is packed
//    (input -> a bank), or sent as it is;
//  - the first combine into a range reads the input directly (three operands), so that what is not
//    sent is not packed;
//  - a value that is final and not sent any more goes straight from the peer's view to the output;
//  - a final value that is still to be sent goes to the arena, and while hot to the output too;
//  - what lies in a bank for one message alone is marked: it may as well be written to memory that
//    goes with the message;
//  - a range that leaves in the same round is not overwritten: the result goes to the other bank;
//    one that left in an earlier round is, after that send has completed (`after`).
// Pure: no pointers, no I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// Where an element of a call lies.
enum class Storage : uint8_t { kNowhere, kInput, kBank0, kBank1, kOutput };

/// One step, lowered. A received range whose elements lie in different storages is lowered to
/// several Receipts, in rising order of `range`; together they cover step.recv.
struct Receipt {
  Range range;
  Combine combine = Combine::kCopy;
  Storage operand = Storage::kNowhere;  // own operand of a reduce
  Storage result = Storage::kNowhere;   // kNowhere: nobody needs it
  bool output_too = false;              // and a copy to the output
  /// First wait for completion of the send of this earlier round; -1: no need. One wait is always
  /// enough: lowering overwrites nothing that several peers may read.
  int after = -1;
  /// The round of the one message that the result is for, which nothing else reads: it may be
  /// written to memory of that message's own instead. -1: it may not. Who receives it gets all of
  /// the message from there, or all of it from the bank.
  int handed_in = -1;
};

struct Action {
  Rank send_to = kNobody;
  Range send;
  Storage send_from = Storage::kNowhere;  // lowering makes every send contiguous in one
  bool handed = false;                    // all that it sends is for this message alone
  Rank recv_from = kNobody;               // the rank itself: its own input joins what it holds
  Range recv;
  Storage own_input = Storage::kNowhere;  // then: where that lies
  std::vector<Receipt> receipts;
};

/// The send of a round, and the one in which it may go at the earliest (earliest_sends).
struct EarliestSend {
  size_t round;
  size_t earliest;
};

/// A copy of the input into a bank, before the first round.
struct Packing {
  Range range;
  Storage to = Storage::kBank0;
  int handed_in = -1;  // as of a receipt

  bool operator==(const Packing&) const = default;
};

/// A copy of the input to the output, at any time after all packing: it is nobody else's, and
/// nothing that is received goes there.
struct Move {
  Range range;  // where it is read
  Storage from = Storage::kNowhere;
  int64_t to_first = 0;  // where the output is written; = range.first but for alltoall's own block
};

struct Plan {
  std::vector<Packing> pack;
  std::vector<Action> actions;  // one for each round; idle ones too
  /// In the order in which they may go; none, if each goes in its round.
  std::vector<EarliestSend> sends;
  std::vector<Move> moves;
  int64_t space = 0;       // elements of a bank
  bool two_banks = false;  // bank 1 is used
  bool hands = false;      // some action is handed
};

/// What the caller gave: the parts of the index space that have an input and those that have an
/// output, each a list of disjoint ranges in rising order, each range contiguous in memory. An
/// element without an input may not be sent or reduced before it was received.
///
/// An element's input and output may be the same memory: its output is not written before the last
/// read of its input. Inputs and outputs of different elements may not, but with `pack_all`.
struct Ends {
  std::vector<Range> inputs;
  std::vector<Range> outputs;
  /// By position: those that can be sent what lies in the caller's memory. Empty: none.
  std::vector<bool> zero_copy;
  /// To them a message is copied when it is sent, which a round's is before anything is received in
  /// that round: its memory may then be written again at once.
  bool copied_when_sent = false;
};

/// `pack_all`: read the input by packing only (a prescale is applied there).
/// Throws Error(kInternal) for a schedule that sends, combines or ends with what the rank does not
/// have, or that two banks cannot serve.
Plan lower(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank);

}  // namespace ringcoll

// The first half of lowering: what becomes of the elements of one rank over a schedule, before
// memory is given to them. For schedule/ only.
//
// Elements that share every range of the schedule and of its ends are one atom. What is received
// for an atom makes a new version of it; the first version is the input. A version is described by
// what is done to it, which is all that decides where it should lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schedule/plan.h"
#include "schedule/schedule.h"

namespace ringcoll {

using Atom = int32_t;
using VersionId = int32_t;
inline constexpr VersionId kNoVersion = -1;

/// Splits versions into those of bank 0 and those of bank 1 under constraints "same bank" and
/// "different banks": union-find that keeps the parity to the root.
class BankAssignment {
 public:
  explicit BankAssignment(size_t versions = 0);
  void add();
  /// False if that contradicts what was said before.
  bool relate(VersionId a, VersionId b, bool different);
  /// The bank, or -1 if nothing has decided yet.
  int bank_of(VersionId version);
  /// Decides for all versions related to this one. Only while bank_of() is -1.
  void decide(VersionId version, int bank);

 private:
  struct Node {
    VersionId parent;
    uint8_t differs;  // from the parent
    int8_t bank;      // of a root: 0, 1, or -1 for undecided
  };
  VersionId root_of(VersionId version);  // and makes its parent the root

  std::vector<Node> nodes_;
};

struct Version {
  Atom atom = 0;
  VersionId operand = kNoVersion;  // what is combined with what is received
  bool folds_input = false;        // and that is the rank's own input
  bool received = false;           // false: the input
  int round = -1;                  // in which it is received
  int last_sent = -1;              // the last round in which it is sent
  bool sent = false;
  bool zero_copy = false;  // sent from the caller's memory
  int handed_in = -1;      // the round of the one message that reads its bank; -1: there is more
  bool copied_inside = false;  // source of a step from the rank to itself
  bool final = false;          // nothing is received for the atom any more
  bool needed = false;         // sent, or wanted by an output, directly or through a reduction
};

/// Replays a schedule. Throws Error(kInternal) if it sends, combines or ends with what the rank
/// does not have, or if no assignment of two banks can serve it.
class History {
 public:
  /// `pack_all`: as of lower().
  History(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank);

  Atom atom_count() const { return static_cast<Atom>(bounds_.size()) - 1; }
  Range range_of(Atom atom) const { return {bounds_[atom], bounds_[atom + 1] - bounds_[atom]}; }
  /// Atoms first … second-1 make up the range, which is one of the schedule's or of the ends'.
  std::pair<Atom, Atom> atoms_of(Range range) const;
  bool wanted(Atom atom) const { return wanted_[atom]; }  // by an output

  /// Versions in the order of their making: the inputs by atom, then those of each round by atom.
  std::vector<Version>& versions() { return versions_; }
  const std::vector<Version>& versions() const { return versions_; }
  VersionId input_of(Atom atom) const { return inputs_[atom]; }  // kNoVersion: no input
  BankAssignment& banks() { return banks_; }

 private:
  struct Message {
    int round = -1;
    Rank to = kNobody;
    Range range;
    std::vector<VersionId> versions;
  };
  void find_bounds(const Schedule& schedule, int64_t space, const Ends& ends);
  void find_inputs_that_stay(const Schedule& schedule);
  void add_version(Version version);
  void send(const Step& step, int round);
  void receive(const Step& step, int round);
  void copy_inside(const Step& step, int round);
  void fold_inside(const Step& step, int round);
  void settle_needs();
  void settle_zero_copy(const Schedule& schedule, const Ends& ends, bool pack_all);
  std::vector<int> reads_of_banks(bool pack_all) const;
  void settle_handing(bool pack_all);
  bool can_stay(const Version& version, bool contained, bool copied_when_sent) const;
  bool can_go(const Message& message, const Ends& ends) const;

  Rank rank_;
  std::vector<int64_t> bounds_;
  std::vector<bool> wanted_;
  std::vector<bool> copied_to_;    // by a step from the rank to itself
  std::vector<bool> input_stays_;  // is sent or folded although something was received before
  std::vector<VersionId> inputs_;
  std::vector<VersionId> current_;  // of each atom
  std::vector<Version> versions_;
  std::vector<Message> messages_;
  BankAssignment banks_;
};

/// Whether a step is one inside the rank.
inline bool is_inside(const Step& step, Rank rank) {
  return step.send_to == rank && step.recv_from == rank;
}

}  // namespace ringcoll

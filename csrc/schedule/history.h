// The first half of lowering: what happens to each element of one rank over a schedule, before
// storage is chosen. Private to schedule/.
//
// An atom is a maximal range that no boundary of the schedule or of `Ends` cuts. Each message
// received for an atom makes a new version of it; the first version is the input. How a version is
// used decides where it lies.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schedule/plan.h"
#include "schedule/schedule.h"

namespace ringcoll {

using Atom = int32_t;
using VersionId = int32_t;
inline constexpr VersionId kNoVersion = -1;

/// Assigns versions to bank 0 or bank 1 under the constraints "same bank" and "different banks".
/// A union-find structure that keeps each node's parity to its root.
class BankAssignment {
 public:
  explicit BankAssignment(size_t versions = 0);
  void add();
  /// False if this contradicts an earlier constraint.
  bool relate(VersionId a, VersionId b, bool different);
  /// The bank, or -1 if it is undecided.
  int bank_of(VersionId version);
  /// Decides the bank of this version, and so of all related versions. Requires bank_of() == -1.
  void decide(VersionId version, int bank);

 private:
  struct Node {
    VersionId parent;
    uint8_t differs;  // from the parent
    int8_t bank;      // valid in a root: 0, 1, or -1 for undecided
  };
  VersionId root_of(VersionId version);  // compresses the path: the parent becomes the root

  std::vector<Node> nodes_;
};

struct Version {
  Atom atom = 0;
  VersionId operand = kNoVersion;  // is combined with what is received
  bool folds_input = false;        // what is received is the rank's own input
  bool received = false;           // false: this is the input
  int round = -1;                  // in which the version is received
  int last_sent = -1;              // the last round in which the version is sent
  bool zero_copy = false;          // sent from the caller's memory
  int sends = 0;                   // the messages that send it
  bool copied_inside = false;      // the source of a copy inside the rank
  bool final = false;              // no later version of the atom exists
  bool needed = false;             // it is sent or goes to an output, itself or once combined
};

/// Replays a schedule. Throws Error(kInternal) if the schedule sends, combines or ends with
/// elements that the rank does not have, or if two banks do not suffice.
class History {
 public:
  /// `pack_all` as in lower().
  History(const Schedule& schedule, int64_t space, const Ends& ends, bool pack_all, Rank rank);

  Atom atom_count() const { return static_cast<Atom>(bounds_.size()) - 1; }
  Range range_of(Atom atom) const { return {bounds_[atom], bounds_[atom + 1] - bounds_[atom]}; }
  /// Atoms first … second-1 make up `range`, which is a range of the schedule or of `Ends`.
  std::pair<Atom, Atom> atoms_of(Range range) const;
  bool wanted(Atom atom) const { return wanted_[atom]; }  // an output needs it

  /// In the order in which they are made: the inputs by atom, then those of each round by atom.
  std::vector<Version>& versions() { return versions_; }
  const std::vector<Version>& versions() const { return versions_; }
  VersionId input_of(Atom atom) const { return inputs_[atom]; }  // kNoVersion: it has none
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
  bool can_stay(const Version& version, bool contained, bool copied) const;
  bool can_go(const Message& message, const Ends& ends) const;

  Rank rank_;
  std::vector<int64_t> bounds_;
  std::vector<bool> wanted_;
  std::vector<bool> copied_to_;    // by a copy inside the rank
  std::vector<bool> input_stays_;  // it may be sent or folded after a first receipt
  std::vector<VersionId> inputs_;
  std::vector<VersionId> current_;  // by atom
  std::vector<Version> versions_;
  std::vector<Message> messages_;
  std::set<Rank> senders_;  // to this rank
  BankAssignment banks_;
};

/// Whether a step is local: both peers are the rank itself.
inline bool is_inside(const Step& step, Rank rank) {
  return step.send_to == rank && step.recv_from == rank;
}

}  // namespace ringcoll

// Who of a group is left after a loss: one answer for all ranks of it that go on.
//
// Each rank says whom it knows to have gone, and what it offers for the group of the others: its
// vote. When all others have voted for one set, that is decided. Who sees it says so, and who hears
// it takes it over, so that all who live learn it though some decide and end.
//
// Why two ranks that live do not decide differently. A rank's sets only grow, it does not vote
// after it has decided, and it decides by votes only for the set that it has voted for last. Say X
// has decided D, and W a larger D', which takes a vote for D' of everybody outside it, X among
// them. If X decided by votes, it has never voted for D'. If it took D over from Y, whom it did not
// know to have gone, then Y is outside of what X has voted for, hence of D', and the same holds of
// Y. If X knew that Y has gone, it takes D over only while D is its own last vote, and does not
// vote again.
//
// What is taken for gone stays so: a rank whom others wrongly hold for gone learns that, and has no
// part in it. Two halves of a cut network come to two answers. The model of what callers expect is
// MPI_Comm_shrink of ULFM (Bland et al., 2013).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"

namespace ringcoll {

/// One thread at a time. Ranks are the group's.
class Survivors {
 public:
  /// By rank: whether it has gone.
  using Set = std::vector<bool>;
  /// What a rank says to all others.
  struct Ballot {
    Rank from = kNobody;
    Set gone;
    bool decided = false;  // else it is a vote
    std::string offer;     // of a vote: for the group of those who have not gone
  };

  Survivors(Rank own, Rank size) : own_(own), gone_(size), size_(size) {}

  /// It is known here that a rank has gone.
  void lose(Rank rank) { gone_.at(rank) = true; }
  /// What another rank, or this one, has said. All ballots of a rank come in its order, and its
  /// decision after the votes that it rests on.
  void take(const Ballot& ballot);
  /// The set to vote for now; none: this rank has voted for what it knows, or it is decided.
  std::optional<Set> due() const;
  bool knows_gone(Rank rank) const { return gone_.at(rank); }
  /// Whether others hold this rank for gone.
  bool excluded() const { return gone_[own_]; }
  /// The set that is decided, once it is. To be said to the others.
  const std::optional<Set>& decided() const { return decision_; }
  /// What each rank has offered for the decided set; empty of those who have gone.
  std::vector<std::string> offers() const;
  /// Who is not known to have gone and has not voted for what this rank has voted for.
  std::vector<Rank> awaited() const;

 private:
  bool is_complete(const Set& set) const;
  void decide();

  const Rank own_;
  Set gone_;  // as far as is known here
  const Rank size_;
  std::optional<Set> voted_;                           // by this rank, last
  std::map<Set, std::map<Rank, std::string>> offers_;  // votes
  std::map<Rank, Set> deciders_;
  std::optional<Set> decision_;
};

}  // namespace ringcoll

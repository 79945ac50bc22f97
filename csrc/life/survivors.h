// Decides which ranks of a group remain after a loss, with one answer for all of them.
//
// Each rank tells which ranks it knows to be gone, and its offer for the group of the others. That
// is its vote. A set is decided when all ranks outside it have voted for it. A rank that sees this
// announces the decision, and ranks that hear it adopt it. So all living ranks learn it, even if
// some decide and end.
//
// Why two living ranks do not decide differently. A rank's sets only grow, and it does not vote
// after it has decided. It decides by votes only for the set of its own last vote. Suppose that X
// has decided D, and W has decided a larger set D' without X in it. Then every rank outside D' has
// voted for D', and so has X.
// - X decided by votes: its last vote is for D, so it has never voted for D'.
// - X adopted D from Y and did not know Y to be gone: no vote of X had Y in its set, so Y is
// outside
//   D' and has voted for D', too. The same argument then holds for Y.
// - X adopted D from Y and knew Y to be gone: that is allowed only while D is the last vote of X,
//   and X does not vote again.
//
// A rank that is held for gone stays so. If it lives, it learns of it and takes no part. Two halves
// of a cut network reach two answers. Callers may expect what MPI_Comm_shrink of ULFM does (Bland
// et al., 2013).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"

namespace ringcoll {

/// One thread at a time. Ranks are group ranks.
class Survivors {
 public:
  /// By rank: true if it is gone.
  using Set = std::vector<bool>;
  /// What a rank tells all others.
  struct Ballot {
    Rank from = kNobody;
    Set gone;
    bool decided = false;  // false: it is a vote
    std::string offer;     // of a vote: for the group of the remaining ranks
  };

  Survivors(Rank own, Rank size) : own_(own), gone_(size), size_(size) {}

  /// Notes that a rank is known to be gone.
  void lose(Rank rank) { gone_.at(rank) = true; }
  /// Takes a ballot of any rank, also of this one. The ballots of a rank must come in its order,
  /// and a decision after the votes that it rests on.
  void take(const Ballot& ballot);
  /// The set to vote for now; none if this rank has voted for what it knows, is excluded, or has
  /// decided.
  std::optional<Set> due() const;
  bool knows_gone(Rank rank) const { return gone_.at(rank); }
  /// True if others hold this rank for gone.
  bool excluded() const { return gone_[own_]; }
  /// The decided set, if any. The caller tells it to the others.
  const std::optional<Set>& decided() const { return decision_; }
  /// By rank, the offers for the decided set; empty for ranks that are gone. Precondition:
  /// decided().
  std::vector<std::string> offers() const;
  /// Ranks not known to be gone that have not voted for the last vote of this rank.
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

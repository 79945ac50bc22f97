// The messages that were flooded along lifelines (life/lifelines.h). They are kept so that none is
// passed on twice, and for ranks whose lifelines are made later. Messages that no rank needs are
// dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/recent.h"
#include "connect/connector.h"
#include "life/survivors.h"

namespace ringcoll {

/// One thread at a time. It remembers the failures of the last kMostRemembered groups, and as many
/// groups that shrink. A message that was forgotten and comes again is passed on and remembered
/// again.
class Flooded {
 public:
  static constexpr size_t kMostRemembered = 4096;

  /// Returns false if it is known.
  bool add_failure(GroupNumber group, const Error& error);
  /// The error of a group if it is remembered, else null.
  const Error* failure_of(GroupNumber group) const { return failures_.find(group); }

  /// `message` is a ballot of that round as it is on the wire. Returns false if it is known.
  bool add_ballot(GroupNumber group, uint64_t round, const std::string& message);
  /// All ballots of that round except the first `known`. Once all remaining ranks have announced
  /// the decision, it always returns one such ballot: only an excluded rank still needs it.
  std::vector<std::string> ballots(GroupNumber group, uint64_t round, size_t known) const;

  /// Every remembered message, for a new lifeline.
  std::vector<std::string> messages() const;
  /// The length of all messages().
  size_t bytes() const;

 private:
  struct Round {
    std::vector<std::string> said;
    Survivors::Set settled;  // ranks that announced the decision, or are gone
  };
  struct Group {
    uint64_t over = 0;  // rounds up to this one are decided
    std::string last;   // a decision of that round
    std::map<uint64_t, Round> rounds;
  };

  Recent<GroupNumber, Error> failures_{kMostRemembered};
  Recent<GroupNumber, Group> groups_{kMostRemembered};
};

}  // namespace ringcoll

// What was flooded along lifelines (mesh/lifelines.h): kept so that nothing is passed on twice, and
// for those who come late. What nobody needs any more goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/recent.h"
#include "bootstrap/connector.h"
#include "mesh/survivors.h"

namespace ringcoll {

/// One thread at a time. Of failures and of groups that shrink, the last kMostRemembered are known:
/// what comes again later is passed on once more, and remembered again.
class Flooded {
 public:
  static constexpr size_t kMostRemembered = 4096;

  /// False: it is known.
  bool add_failure(GroupNumber group, const Error& error);
  /// The error of a group, if it is remembered; else null.
  const Error* failure_of(GroupNumber group) const { return failures_.find(group); }

  /// A ballot of that round, as it is on the wire. False: it is known.
  bool add_ballot(GroupNumber group, uint64_t round, const std::string& message);
  /// All of that round but for the first `known`. After all who are left have said that it is
  /// decided, always one that says so: it is news only to who is not left.
  std::vector<std::string> ballots(GroupNumber group, uint64_t round, size_t known) const;

  /// All of it, for who comes late.
  std::vector<std::string> messages() const;
  /// Bytes of messages.
  size_t bytes() const;

 private:
  struct Round {
    std::vector<std::string> said;
    Survivors::Set settled;  // who has said that it is decided, or has gone
  };
  struct Group {
    uint64_t over = 0;  // rounds to this one are
    std::string last;   // of a decision of that round
    std::map<uint64_t, Round> rounds;
  };

  Recent<GroupNumber, Error> failures_{kMostRemembered};
  Recent<GroupNumber, Group> groups_{kMostRemembered};
};

}  // namespace ringcoll

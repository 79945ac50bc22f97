#include "mesh/shrink.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "mesh/survivors.h"

namespace ringcoll {
namespace {

// How long it waits for news before it looks at everything again.
constexpr Duration kShrinkLook = std::chrono::milliseconds(5);

/// One rank's part in it.
class Shrinking {
 public:
  Shrinking(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round)
      : mesh_(mesh), group_(group), round_(round), survivors_(group.rank(), group.size()) {}

  std::unique_ptr<Group> run(Deadline deadline) {
    while (true) {
      // First, and looked at last: who has decided may leave the group at once, and is not lost.
      std::vector<Rank> gone = group_.health().all_gone();
      hear();
      if (!survivors_.decided())
        for (Rank rank : gone) survivors_.lose(rank);
      if (survivors_.excluded())
        throw Error(Code::kPeerLost, "the other ranks hold this one for lost, and go on without it",
                    group_.rank());
      if (survivors_.decided()) return join();
      if (auto set = survivors_.due()) {
        vote(*set);
        continue;
      }
      close_ring();
      if (deadline.passed()) throw late();
      group_.health().wait_for_news(kShrinkLook);
    }
  }

 private:
  /// What this rank has voted for, and the group that it would be.
  struct Candidate {
    Survivors::Set gone;
    std::unique_ptr<Group> group;  // null: there is no room for it
  };

  void hear() {
    for (const Survivors::Ballot& ballot : group_.health().ballots(round_, heard_)) {
      heard_++;
      survivors_.take(ballot);
    }
  }

  std::vector<Rank> members_without(const Survivors::Set& gone) const {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < group_.size(); rank++)
      if (!gone[rank]) members.push_back(group_.members()[rank]);
    return members;
  }

  void vote(const Survivors::Set& gone) {
    Candidate& mine = candidates_.emplace_back(Candidate{gone, nullptr});
    std::string offer;
    try {
      mine.group = std::make_unique<Group>(mesh_, members_without(gone));
      const Group::Offer& given = mine.group->offer();
      offer.assign(reinterpret_cast<const char*>(&given), sizeof given);
    } catch (const std::exception& error) {  // of whatever kind: the others wait for its vote
      log_debug("shrink: {}", error.what());
    }
    group_.health().say(round_, {group_.rank(), gone, false, offer});
    hear();
  }

  std::unique_ptr<Group> join() {
    const Survivors::Set& gone = *survivors_.decided();
    group_.health().say(round_, {group_.rank(), gone, true, ""});
    std::vector<Group::Offer> offers;
    std::vector<std::string> given = survivors_.offers();
    for (Rank rank = 0; rank < group_.size(); rank++) {
      if (gone[rank]) continue;
      if (given[rank].size() != sizeof(Group::Offer))
        throw Error(Code::kTransport,
                    fmt::format("{} has no room for another group: close some",
                                group_.topology().describe(rank)),
                    rank);
      std::memcpy(&offers.emplace_back(), given[rank].data(), sizeof(Group::Offer));
    }
    for (Candidate& candidate : candidates_)
      if (candidate.gone == gone) {
        candidate.group->join(offers);
        return std::move(candidate.group);
      }
    throw Error(Code::kInternal, "a group was decided on that this rank has not voted for");
  }

  // Whoever lives is joined by lifelines, though those who joined them are gone: to the next on
  // either side.
  void close_ring() {
    const Rank size = group_.size();
    for (Rank step : {1, size - 1}) {
      Rank next = (group_.rank() + step) % size;
      while (next != group_.rank() && survivors_.knows_gone(next)) next = (next + step) % size;
      if (next != group_.rank()) mesh_->restore_lifeline(group_.members()[next]);
    }
  }

  Error late() const {
    std::vector<std::string> names;
    std::vector<Rank> awaited = survivors_.awaited();
    for (Rank rank : awaited) names.push_back(group_.topology().describe(rank));
    return {Code::kTimeout,
            fmt::format("shrink: {} did not come before the deadline; all ranks that are left have "
                        "to call it",
                        fmt::join(names, ", ")),
            awaited.empty() ? kNobody : awaited.front()};
  }

  const std::shared_ptr<Mesh>& mesh_;
  Group& group_;
  const uint64_t round_;
  Survivors survivors_;
  size_t heard_ = 0;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::unique_ptr<Group> shrink(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round,
                              Deadline deadline) {
  return Shrinking(mesh, group, round).run(deadline);
}

}  // namespace ringcoll

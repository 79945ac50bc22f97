#include "mesh/group/shrink.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/long_wait.h"
#include "life/survivors.h"

namespace ringcoll {
namespace {

// How long run() waits for news before it checks everything again.
constexpr Duration kShrinkLook = std::chrono::milliseconds(5);
// How long a host may leave a connection unanswered; the kernel has tried three times by then.
constexpr Duration kReachHost = std::chrono::seconds(4);
// The pause between two tries to reach one rank.
constexpr Duration kRetryPause = std::chrono::milliseconds(100);
// After each of these periods, twice as many ranks are tried at a time in either direction.
constexpr Duration kWiden = std::chrono::milliseconds(250);
// How long no further rank may be found gone before this rank votes, if it has lifelines to the
// next rank in both directions; kWiden otherwise.
constexpr Duration kCalm = std::chrono::milliseconds(2);

/// The result of trying to reach one rank.
struct Try {
  enum class State : uint8_t { kIdle, kCalling, kEnded, kSilent, kAnswered };
  std::atomic<State> state = State::kIdle;  // set by the connector's thread while kCalling
  Clock::time_point begun{};
  Clock::time_point silent_since{};
};

Try::State state_of(const std::optional<Unmade>& unmade) {
  if (!unmade) return Try::State::kIdle;
  switch (unmade->peer) {
    case Unmade::PeerState::kEnded:
      return Try::State::kEnded;
    case Unmade::PeerState::kSilent:
      return Try::State::kSilent;
    case Unmade::PeerState::kUnknown:
      break;
  }
  return Try::State::kAnswered;
}

}  // namespace

class Shrink::Part {
 public:
  Part(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round)
      : mesh_(mesh), group_(group), round_(round), survivors_(group.rank(), group.size()) {}

  bool is_over() const { return survivors_.decided().has_value(); }

  std::unique_ptr<Group> run(Deadline deadline, const std::function<bool()>& is_aborted) {
    began_ = Clock::now();
    LongWait long_wait;
    while (true) {
      // Reads `gone` before the ballots, but uses it after them: a rank that has decided may leave
      // the group at once, and is not lost.
      std::vector<Rank> gone = group_.health().all_gone();
      hear();
      if (!survivors_.decided())
        for (Rank rank : gone) survivors_.lose(rank);
      if (survivors_.excluded())
        throw Error(Code::kPeerLost, "the other ranks hold this one for lost, and go on without it",
                    group_.rank());
      if (survivors_.decided()) return join();
      bool is_joined = close_ring();
      auto set = survivors_.due();
      if (set && is_settled(*set, is_joined ? kCalm : kWiden)) {
        vote(*set);
        continue;
      }
      if (deadline.passed()) throw late();
      if (is_aborted())
        throw Error(Code::kAborted, "shrink: the communicator was aborted here meanwhile",
                    group_.rank());
      long_wait.tell(
          Clock::now(), [this] { return group_.topology().describe(group_.rank()); },
          [] { return "shrink"; }, [this] { return awaited(); });
      group_.health().wait_for_news(set && is_joined ? kCalm : kShrinkLook);
    }
  }

 private:
  /// A set that this rank has voted for, and the group of the others.
  struct Candidate {
    Survivors::Set gone;
    std::unique_ptr<Group> group;  // null: there is no room for it
  };

  // True if no further rank was found gone for this long. Ranks that die together are found one by
  // one, and each vote makes a group.
  bool is_settled(const Survivors::Set& gone, Duration calm) {
    auto now = Clock::now();
    if (gone != found_) found_ = gone, found_at_ = now;
    return now - found_at_ >= calm;
  }

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
    } catch (const std::exception& error) {  // of any kind: the others wait for this rank's vote
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
        warn_of_others(gone);
        return std::move(candidate.group);
      }
    throw Error(Code::kInternal, "a group was decided on that this rank has not voted for");
  }

  // Makes lifelines to the next living rank in both directions, so that all living ranks are
  // connected even if ranks between them are gone. Both ends try the ranks in between, and so find
  // them gone. Returns false while some rank is still tried.
  bool close_ring() {
    const Rank size = group_.size();
    bool is_joined = true;
    auto doublings = std::min<int64_t>((Clock::now() - began_) / kWiden, 30);
    for (Rank step : {1, size - 1}) {
      int64_t missing = int64_t{1} << doublings;
      Rank next = (group_.rank() + step) % size;
      for (; next != group_.rank() && missing > 0; next = (next + step) % size) {
        if (survivors_.knows_gone(next)) continue;
        if (mesh_->lifelines().has(group_.members()[next])) break;
        reach(next);
        is_joined = false;
        missing--;
      }
    }
    return is_joined;
  }

  // Starts a lifeline, or finds that the rank is gone: nobody listens at its address, or its host
  // has not answered for kReachHost. A stopped rank is neither.
  void reach(Rank rank) {
    auto& tried = tries_[rank];
    if (!tried) tried = std::make_shared<Try>();
    auto now = Clock::now();
    switch (tried->state.load()) {
      case Try::State::kCalling:
        return;
      case Try::State::kEnded:
        return survivors_.lose(rank);
      case Try::State::kSilent:
        if (now - tried->silent_since >= kReachHost) return survivors_.lose(rank);
        break;
      case Try::State::kIdle:
      case Try::State::kAnswered:
        tried->silent_since = now;
        break;
    }
    if (now - tried->begun < kRetryPause) return;
    tried->begun = now;
    tried->state = Try::State::kCalling;
    mesh_->begin_lifeline(
        group_.members()[rank], kNoGroup, Connector::Ends::kEither, Deadline(kReachHost),
        [tried](const std::optional<Unmade>& unmade) { tried->state = state_of(unmade); });
  }

  // In a cut network each side may reach an answer. At most one side has more than half of the
  // ranks.
  void warn_of_others(const Survivors::Set& gone) const {
    auto left = std::ranges::count(gone, false);
    bool is_lowest = std::ranges::find(gone, false) - gone.begin() == group_.rank();
    bool is_elsewhere = false;
    for (Rank rank = 0; rank < group_.size(); rank++)
      is_elsewhere |= gone[rank] && !group_.topology().same_host(rank, group_.rank());
    if (2 * left <= group_.size() && is_lowest && is_elsewhere)
      log_warning(
          "shrink: {} of {} ranks are left, which are not more than half: if the network was cut "
          "and "
          "the others live, they may go on as a group of their own",
          left, group_.size());
  }

  std::string awaited() const {
    std::vector<std::string> names;
    for (Rank rank : awaited_others()) names.push_back(group_.topology().describe(rank));
    return fmt::format("{}", fmt::join(names, ", "));
  }

  std::vector<Rank> awaited_others() const {
    std::vector<Rank> ranks = survivors_.awaited();
    std::erase(ranks,
               group_.rank());  // it may not have voted while some rank is still tried
    return ranks;
  }

  Error late() const {
    std::vector<Rank> ranks = awaited_others();
    return {Code::kTimeout,
            fmt::format("shrink: {} did not come before the deadline; all ranks that are left have "
                        "to call it",
                        awaited()),
            ranks.empty() ? kNobody : ranks.front()};
  }

  const std::shared_ptr<Mesh>& mesh_;
  Group& group_;
  const uint64_t round_;
  Survivors survivors_;
  size_t heard_ = 0;
  std::vector<Candidate> candidates_;
  Survivors::Set found_;  // ranks found gone at the last check
  Clock::time_point found_at_, began_;
  std::map<Rank, std::shared_ptr<Try>> tries_;  // shared: the connector may still report to them
};

Shrink::Shrink(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round)
    : part_(std::make_unique<Part>(mesh, group, round)) {}
Shrink::~Shrink() = default;

std::unique_ptr<Group> Shrink::run(Deadline deadline, const std::function<bool()>& is_aborted) {
  return part_->run(deadline, is_aborted);
}
bool Shrink::is_over() const { return part_->is_over(); }

}  // namespace ringcoll

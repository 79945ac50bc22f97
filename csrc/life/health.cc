#include <algorithm>
#include <utility>

#include "life/lifelines_state.h"

namespace ringcoll {

Health::Health(Lifelines& lifelines, Options options)
    : lines_(lifelines.state_),
      state_(std::make_shared<State>(std::move(options))),
      poisoned_(&state_->poisoned) {
  lines_->add(state_);
}

Health::~Health() { leave(); }

void Health::leave() {
  {
    std::lock_guard lock(state_->calling);
    if (std::exchange(state_->left, true)) return;
  }
  lines_->remove(state_->options.group);
}

void Health::poison(const Error& error) {
  if (!poisoned()) lines_->fail(state_->options.group, error);
}

void Health::fail(const Error& error) {
  Deadline grace(lifeline::grace_of(error));
  while (!poisoned() && !grace.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  poison(error);
}

Error Health::error() const {
  std::lock_guard lock(lines_->mutex);
  invariant(state_->first.has_value(), "asked for an error before there is one");
  return *state_->first;
}

void Health::set_waiting_for(Rank peer) {
  state_->waiting_for.store(peer, std::memory_order_relaxed);
}

void Health::waiting_for(Rank peer, const std::function<void()>& body) {
  throw_if_poisoned();
  set_waiting_for(peer);
  try {
    body();
  } catch (const Error& error) {
    throw_if_poisoned();
    if (error.rank() == kNobody) throw;
    throw Error(error.code(), error.what(), peer);
  }
  set_waiting_for(kNobody);
}

bool Health::gone(Rank peer) const {
  std::lock_guard lock(lines_->mutex);
  return lines_->is_gone(state_->options.group, state_->options.members.at(peer));
}

// This rank is among them if others say so.
std::vector<Rank> Health::all_gone() const {
  std::lock_guard lock(lines_->mutex);
  std::vector<Rank> ranks;
  const auto& members = state_->options.members;
  for (size_t r = 0; r < members.size(); r++)
    if (lines_->lost.contains(members[r]) || lines_->is_gone(state_->options.group, members[r]))
      ranks.push_back(static_cast<Rank>(r));
  return ranks;
}

void Health::say(uint64_t round, const Survivors::Ballot& ballot) {
  GroupNumber group = state_->options.group;
  std::lock_guard lock(lines_->mutex);
  lines_->take_ballot(group, round, encode(group, round, ballot));
}

std::vector<Survivors::Ballot> Health::ballots(uint64_t round, size_t known) const {
  std::lock_guard lock(lines_->mutex);
  std::vector<Survivors::Ballot> heard;
  for (const std::string& said : lines_->flooded.ballots(state_->options.group, round, known)) {
    auto ballot = lifeline::ballot_of(said, state_->options.members.size());
    heard.push_back(ballot ? *ballot : Survivors::Ballot{});
  }
  return heard;
}

void Health::wait_for_news(Duration limit) const {
  std::unique_lock lock(lines_->mutex);
  lines_->changed.wait_for(lock, limit);
}

void Health::listen(HealthListener* listener) {
  std::lock_guard lock(state_->listening);
  state_->listener = listener;
}

void Health::tick() {
  std::lock_guard lock(state_->listening);
  if (!std::exchange(state_->ticks, true)) lines_->tick_later(state_);
}

std::vector<Rank> Health::listeners() const {
  const auto& members = state_->options.members;
  auto size = static_cast<Rank>(members.size());
  std::vector<Rank> found;
  std::lock_guard lock(lines_->mutex);
  auto add = [&](Rank rank) {
    if (lines_->lines[members[rank]].fd && std::ranges::count(found, rank) == 0)
      found.push_back(rank);
  };
  Rank waited_for = state_->waiting_for.load(std::memory_order_relaxed);
  if (waited_for != kNobody) add(waited_for);
  for (Rank away = 1; away <= size / 2 && found.size() < kMostTold; away++)
    for (Rank rank : {own_rank() + away, own_rank() + size - away}) add(rank % size);
  return found;
}

void Health::tell_calls(Rank to, std::string_view calls) {
  std::string message = encode_calls(state_->options.group, calls);
  std::lock_guard lock(lines_->mutex);
  Line& line = lines_->lines[state_->options.members.at(to)];
  if (lifeline::is_read(line)) send_on(line, message);
}

Rank Health::own_rank() const {
  const auto& members = state_->options.members;
  return static_cast<Rank>(std::ranges::find(members, lines_->rank) - members.begin());
}

bool Health::answers(Rank peer, Duration grace) const {
  using Reply = Lifelines::State::Reply;
  Rank next = kNobody;
  Reply reply = lines_->ask(*state_, state_->options.members.at(peer), grace, &next);
  return reply == Reply::kAnswered || reply == Reply::kNoLine;
}

Error Health::blame(Rank peer, const std::string& doing, Duration grace) {
  Lifelines::State& lines = *lines_;
  const State& state = *state_;
  using Reply = Lifelines::State::Reply;
  auto timeout = [&](Rank rank, const std::string& cause) {
    return Error(Code::kTimeout, fmt::format("{}: {}", doing, cause), rank);
  };
  // The chain of waits that begins at this rank. It grows in each iteration and holds no rank
  // twice.
  std::vector<Rank> chain = {own_rank()};
  for (Rank asked = peer, next = kNobody;; asked = next) {
    std::string who = state.options.describe(asked);
    switch (lines.ask(state, state.options.members.at(asked), grace, &next)) {
      case Reply::kPoisoned:
        return error();
      case Reply::kGone:
        return Error(Code::kPeerLost, fmt::format("{}: {} has left the communicator", doing, who),
                     asked);
      case Reply::kSilent:
        return timeout(asked, fmt::format("{} does not answer before the deadline; its process is "
                                          "stopped, or its host or the network to it is down",
                                          who));
      case Reply::kNoLine:
        // Peers with a lifeline to that rank reach their own deadlines soon, ask it, and report
        // first.
        if (lines.wait_for_poison(state, grace * 3 / 2)) return error();
        return timeout(asked,
                       fmt::format("{} has not done its part before the deadline, and this rank "
                                   "has no connection to ask it for the reason",
                                   who));
      case Reply::kAnswered:
        break;
    }
    if (next == kNobody)
      return timeout(asked, fmt::format("{} is alive but has not done its part before the "
                                        "deadline; it is busy with something else (if that is "
                                        "intended, raise RINGCOLL_TIMEOUT_S or the timeout of the "
                                        "call), or it makes its calls in another order",
                                        who));
    chain.push_back(asked);
    if (std::ranges::find(chain, next) != chain.end())
      return timeout(asked, fmt::format("ranks wait for each other in a circle, {} for {}; do all "
                                        "ranks make the same calls in the same order?",
                                        who, state.options.describe(next)));
  }
}

}  // namespace ringcoll

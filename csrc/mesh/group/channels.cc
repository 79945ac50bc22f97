#include "mesh/group/channels.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/interruption.h"
#include "base/log.h"
#include "mesh/group/group.h"

namespace ringcoll {
namespace {

// How long a rank that leaves sleeps before it looks whether its peer has left.
constexpr Duration kLongestRest = std::chrono::milliseconds(1);
// How many times longer a wait polls where ranks share CPUs. Other ranks run between two polls, and
// a busy CPU is slow to wake a sleeper up.
constexpr int kMoreYielding = 16;
// How long a copy of 1 MiB takes in the slow case, from one core's caches to another's.
constexpr int64_t kMiB = 1 << 20;
constexpr Duration kCopyOfAMiB = std::chrono::microseconds(150);

// At its deadline a rank first lets ranks that are nearer to the cause report it for this long.
constexpr Duration kBlameGrace = std::chrono::milliseconds(500);

// An iteration of a wait sleeps for kLongestSleep at most. If it took this long, the process was
// stopped.
constexpr Duration kSurelyStopped = std::chrono::seconds(1);

// Extends the deadline by the time in which this process was stopped (a signal, a debugger, a
// suspended machine). The peers may have been stopped with it, so nobody is to blame. `seen` is the
// time of the previous iteration.
void forgive_stop(Clock::time_point* seen, Deadline* deadline) {
  auto now = Clock::now();
  if (now - *seen > kSurelyStopped) deadline->extend(now - *seen);
  *seen = now;
}

}  // namespace

Channels::Channels(Group& group)
    : group_(group),
      channels_(group.size()),
      host_links_(group.size()),
      set_(group.mesh().bells(), group.mesh().topology().crowded(group.mesh().rank())),
      spin_(std::chrono::microseconds(group.config().spin_us) * (yields() ? kMoreYielding : 1)) {
  for (Rank peer = 0; peer < group.size(); peer++) {
    by_network_.push_back(group.link_of(peer) == LinkClass::kNetwork);
    if (Transport* part = group.part_to(peer)) set_.add(*part);
  }
}

void Channels::rest() { set_.sleep(kLongestRest); }

void Channels::finish() {
  const Health& health = group_.health();
  Deadline sending(seconds(std::min(group_.config().timeout_s, 5.0))), draining(kLongestDrain);
  try {
    while (!health.poisoned() && progress_others(nullptr) && !sending.passed()) {
    }
  } catch (const Error& error) {
    log_debug("leaving: {}", error.what());
  }
  for (Rank peer : connected_) drain(peer, draining);
}

void Channels::drain(Rank peer, Deadline deadline) {
  Endpoint& channel = *channels_[peer];
  const Health& health = group_.health();
  try {
    while (!health.poisoned() && !health.gone(peer) && !deadline.passed() && !channel.drained())
      rest();
  } catch (const Error& error) {
    log_debug("leaving: {}", error.what());
  }
}

void Channels::connect(std::span<const Rank> peers, const std::function<std::string()>& doing) {
  Deadline deadline = deadline_.value_or(Deadline(seconds(group_.config().timeout_s)));
  std::vector<Rank> fresh;
  std::vector<bool> known(channels_.size());
  known[group_.rank()] = true;
  Rank own = group_.mesh().rank();
  for (bool higher : {true, false})
    for (Rank peer : peers) {
      if (known[peer] || channels_[peer] || (group_.members()[peer] > own) != higher) continue;
      known[peer] = true;
      fresh.push_back(peer);
    }
  if (fresh.empty()) return;
  Openings links(group_.mesh(), group_.number(), group_.health(), deadline, doing);
  for (Rank peer : fresh) links.add({peer, group_.members()[peer]}, group_.part_to(peer));
  links.await([this](Opening& link) { add(link.peer(), link.take_link()); });
  for (auto state : {Opening::State::kProving, Opening::State::kOpen})
    for (const auto& link : links.all()) set_up(*link, state);
}

void Channels::add(Rank peer, std::unique_ptr<Endpoint> channel) {
  host_links_[peer] = ringcoll::host_link(*channel);
  channels_[peer] = std::move(channel);
  connected_.push_back(peer);
}

void Channels::set_up(Opening& link, Opening::State state) {
  group_.health().throw_if_poisoned();
  wait(
      link.peer(), [&] { return link.advance() >= state; },
      [&] { return fmt::format("setting up the link to rank {}", link.peer()); });
}

bool Channels::progress_others(const Endpoint* but) {
  bool busy = false;
  for (Rank peer : connected_) {
    Endpoint* channel = channels_[peer].get();
    if (channel == but || !channel->busy()) continue;
    channel->progress();
    busy |= channel->busy();
  }
  return busy;
}

bool Channels::flush(const std::function<std::string()>& doing, const std::function<bool()>& leaves,
                     std::optional<Patience>* patience) {
  for (Rank peer : connected_) {
    Endpoint& channel = *channels_[peer];
    if (!channel.busy()) continue;
    bool left = false;
    wait(
        peer,
        [&] {
          left = leaves();
          if (!left) channel.progress();
          return left || !channel.busy();
        },
        doing, 0, patience);
    if (left) return false;
    if (patience) patience->reset();
  }
  return true;
}

// A wake-up costs many microseconds more than a poll, so a wait polls while the peer is copying.
Duration Channels::spin(uint64_t bytes) const {
  return spin_ + kCopyOfAMiB * static_cast<int64_t>(bytes) / kMiB;
}

void Channels::wait_slowly(Rank peer, const std::function<bool()>& ready,
                           const std::function<std::string()>& doing, uint64_t bytes,
                           std::optional<Patience>& kept) {
  group_.health().set_waiting_for(peer);
  if (!kept) kept.emplace(seconds(group_.config().timeout_s));
  Deadline& deadline = deadline_ ? *deadline_ : kept->deadline;
  blocked_ = false;
  auto between = [&] {
    Interruption::look();
    group_.health().throw_if_poisoned();
    progress_others(channels_[peer].get());
  };
  Duration spinning = std::min(spin(by_network_[peer] ? 0 : bytes), deadline.left());
  if (!set_.spin(spinning, ready, between)) block(peer, ready, doing, deadline, *kept);
  blocked_ = false;
  group_.health().set_waiting_for(kNobody);
}

// Looks at what is awaited between setting blocked_ and the first sleep, so wake_if_blocked() of
// another thread comes in time.
void Channels::block(Rank peer, const std::function<bool()>& ready,
                     const std::function<std::string()>& doing, Deadline& deadline,
                     Patience& patience) {
  Health& health = group_.health();
  blocked_waits_ += 1;
  blocked_ = true;
  while (!ready()) {
    Interruption::look();
    health.throw_if_poisoned();
    progress_others(channels_[peer].get());
    if (patience.farewell.is_over(health, peer))
      throw Error(Code::kPeerLost,
                  fmt::format("{} has left the communicator", group_.topology().describe(peer)),
                  peer);
    forgive_stop(&patience.seen, &deadline);
    patience.long_wait.tell(
        patience.seen, [&] { return group_.topology().describe(group_.rank()); }, doing,
        [&] { return group_.topology().describe(peer); });
    if (deadline.passed()) {
      health.poison(health.blame(peer, doing(), kBlameGrace));
      health.throw_if_poisoned();
    }
    Duration longest = WaitSet::kLongestSleep;
    if (wake_at_) longest = std::clamp(*wake_at_ - Clock::now(), Duration::zero(), longest);
    set_.sleep(std::min<Duration>(deadline.left(), longest));
  }
}

void Channels::revoke() noexcept {
  for (Rank peer : connected_) channels_[peer]->revoke();
}

}  // namespace ringcoll

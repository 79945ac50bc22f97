#include "connect/batch.h"

#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "connect/dials.h"

namespace ringcoll {
namespace {

// Longest sleep if there is no eventfd that could wake the batch.
constexpr Duration kBlind = std::chrono::milliseconds(5);

}  // namespace

Connector::State::Batch::Batch(State& state, GroupNumber group, Deadline deadline)
    : state_(state), group_(group), deadline_(deadline), permits_(Dials::kMostInFlight) {}

Connector::State::Batch::~Batch() {
  std::lock_guard lock(state_.mutex);
  state_.waiting.erase(news_.get());
}

void Connector::State::Batch::dial(Rank peer, uint64_t channel) {
  if (peer > state_.rank) return call(peer, channel);
  add(std::make_unique<Inward>(state_, target(peer, channel), deadline_, permits_));
}

void Connector::State::Batch::call(const Target& to, Deadline deadline) {
  add(std::make_unique<Outward>(state_, to, state_.networks_for(to.peer, to.channel), deadline,
                                deadline, permits_));
}

void Connector::State::Batch::try_network(Rank peer, uint64_t channel, int network,
                                          Deadline reach) {
  add(std::make_unique<Outward>(state_, target(peer, channel), std::vector<int>{network}, reach,
                                deadline_, permits_));
}

// The eventfd is made with the first dial, so that an empty batch takes no descriptor.
void Connector::State::Batch::add(std::unique_ptr<Dial> dial) {
  if (!news_) {
    news_ = Fd::made_by([] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
    std::lock_guard lock(state_.mutex);
    if (news_) state_.waiting.insert(news_.get());
  }
  size_t turn = turns_.try_emplace(dial->to().peer, turns_.size()).first->second;
  dials_[{turn, begun_++}].dial = std::move(dial);
  has_news_ = true;
}

std::optional<Connector::State::Batch::Ended> Connector::State::Batch::pop() {
  if (ended_.empty()) return {};
  Ended first = std::move(ended_.front());
  ended_.pop_front();
  return first;
}

std::optional<Connector::State::Batch::Made> Connector::State::Batch::next(Duration limit) {
  Clock::time_point until = Clock::now() + limit;
  while (ended_.empty() && !dials_.empty()) {
    throw_if_interrupted(*dials_.begin()->second.dial);
    advance_all();
    if (!ended_.empty()) break;
    if (Clock::now() >= until) return {};
    sleep(until);
  }
  auto first = pop();
  if (!first) return {};
  if (first->unmade) throw Error(first->unmade->why);
  return Made{first->to.peer, first->to.channel, std::move(first->fd)};
}

std::optional<Connector::State::Batch::Ended> Connector::State::Batch::step() {
  if (has_news_) end_interrupted();
  if (ended_.empty()) advance_all();
  if (ended_.empty() && !dials_.empty()) sleep(Clock::now() + seconds(INFINITY));
  return pop();
}

Fd Connector::State::Batch::only() { return std::move(next(seconds(INFINITY)).value().fd); }

void Connector::State::Batch::throw_if_interrupted(const Dial& dial) const {
  if (state_.is_interrupted(dial.to().group))
    throw Error(Code::kTransport,
                fmt::format("{}: given up, for the communicator has failed", dial.link()),
                dial.to().peer);
}

void Connector::State::Batch::end_interrupted() {
  for (auto entry = dials_.begin(); entry != dials_.end();) {
    auto next = std::next(entry);
    try {
      throw_if_interrupted(*entry->second.dial);
    } catch (const Error& error) {
      end(entry, error);
    }
    entry = next;
  }
}

void Connector::State::Batch::end(Entries::iterator entry, const Error& error) {
  const Dial& dial = *entry->second.dial;
  Error named(error.code(), error.what(), dial.to().peer);
  ended_.push_back({dial.to(), Fd(), Unmade{named, dial.says_of_peer()}});
  dials_.erase(entry);
}

// Advances in the order in which peers were named. So at the deadline, the missing peer that was
// named first ends first, and its error counts.
void Connector::State::Batch::advance_all() {
  bool has_news = std::exchange(has_news_, false);
  Clock::time_point now = Clock::now();
  for (auto entry = dials_.begin(); entry != dials_.end();) {
    Dial& dial = *entry->second.dial;
    short events = std::exchange(entry->second.events, 0);
    auto next = std::next(entry);
    if (events != 0 || (has_news && dial.is_awaited()) || now >= dial.due()) {
      try {
        if (dial.advance(events)) {
          ended_.push_back({dial.to(), dial.take(), {}});
          dials_.erase(entry);
        }
      } catch (const Error& error) {
        end(entry, error);
      }
    }
    entry = next;
  }
}

void Connector::State::Batch::sleep(Clock::time_point until) {
  fds_.assign(1, {news_.get(), POLLIN, 0});
  if (!news_) until = std::min(until, Clock::now() + kBlind);
  polled_.clear();
  for (auto& [key, entry] : dials_) {
    until = std::min(until, entry.dial->due());
    pollfd polled = entry.dial->polled();
    if (polled.fd < 0) continue;  // many have none, and poll() limits the number of entries
    fds_.push_back(polled);
    polled_.push_back(&entry);
  }
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::max(Duration::zero(), until - Clock::now()));
  timespec timeout{static_cast<time_t>(ns.count() / 1'000'000'000),
                   static_cast<long>(ns.count() % 1'000'000'000)};
  if (::ppoll(fds_.data(), fds_.size(), &timeout, nullptr) < 0) return;
  for (size_t i = 0; i < polled_.size(); i++) polled_[i]->events = fds_[i + 1].revents;
  uint64_t count = 0;
  has_news_ = !news_ || (fds_[0].revents != 0 && ::read(news_.get(), &count, sizeof count) > 0);
}

std::vector<Connector::State::Batch::Made> Connector::State::Batch::settle_lifelines(
    Duration limit) {
  auto is_lifeline = [](uint64_t channel) { return channel == kLifelineChannel; };
  std::erase_if(dials_, [&](const auto& entry) {
    const Dial& dial = *entry.second.dial;
    return !is_lifeline(dial.to().channel) || !dial.is_nearly_made();
  });
  Clock::time_point until = Clock::now() + limit;
  while (!dials_.empty() && Clock::now() < until) {
    advance_all();
    if (!dials_.empty()) sleep(until);
  }
  dials_.clear();
  std::vector<Made> lifelines;
  while (auto ended = pop()) {
    auto& [to, fd, unmade] = *ended;
    if (!unmade && is_lifeline(to.channel))
      lifelines.push_back({to.peer, to.channel, std::move(fd)});
  }
  return lifelines;
}

// ---- Dials: the interface for other files ----

struct Dials::State {
  Connector::State::Batch batch;
  const GroupNumber group;
};

Dials::Dials(Connector& connector, GroupNumber group, Deadline deadline)
    : state_(new State{{*connector.state_, group, deadline}, group}) {}
Dials::~Dials() = default;

void Dials::dial(Rank peer, uint32_t channel) {
  state_->batch.dial(peer, channel_of(state_->group, channel));
}
void Dials::dial_lifeline(Rank peer) { state_->batch.dial(peer, channel_of(0, kLifelineChannel)); }
bool Dials::empty() const { return state_->batch.empty(); }

namespace {

Dials::Made without_group(auto made) {
  return {made.peer, static_cast<uint32_t>(made.channel % kChannelsOfGroup), std::move(made.fd)};
}

}  // namespace

std::optional<Dials::Made> Dials::next(Duration limit) {
  auto made = state_->batch.next(limit);
  if (!made) return {};
  return without_group(std::move(*made));
}

std::vector<Dials::Made> Dials::settle_lifelines(Duration limit) {
  std::vector<Made> lifelines;
  for (auto& made : state_->batch.settle_lifelines(limit))
    lifelines.push_back(without_group(std::move(made)));
  return lifelines;
}

}  // namespace ringcoll

#include "connect/batch.h"

#include <fmt/core.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/error.h"

namespace ringcoll {
namespace {

// Longest sleep if there is no eventfd that could wake the batch.
constexpr Duration kBlind = std::chrono::milliseconds(5);

}  // namespace

Connector::State::Batch::~Batch() {
  std::lock_guard lock(state_.mutex);
  state_.waiting.erase(news_.get());
}

void Connector::State::Batch::add(const Target& to, Ends ends, Deadline deadline) {
  if (ends == Ends::kLower && to.peer < state_.rank)
    return add(std::make_unique<Inward>(state_, to, deadline, permits_));
  add(std::make_unique<Outward>(state_, to, state_.networks_for(to.peer, to.channel), deadline,
                                deadline, permits_));
}

void Connector::State::Batch::try_network(const Target& to, int network, Deadline reach,
                                          Deadline deadline) {
  add(std::make_unique<Outward>(state_, to, std::vector<int>{network}, reach, deadline, permits_));
}

// The eventfd is made with the first dial, so that an empty batch takes no descriptor.
void Connector::State::Batch::add(std::unique_ptr<Dial> dial) {
  if (!news_) {
    news_ = Fd::made_by([] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
    std::lock_guard lock(state_.mutex);
    if (news_) state_.waiting.insert(news_.get());
  }
  dials_[begun_++].dial = std::move(dial);
  has_news_ = true;
}

std::optional<Connector::State::Batch::Ended> Connector::State::Batch::step() {
  if (has_news_) end_interrupted();
  if (ended_.empty()) advance_all();
  if (ended_.empty() && !dials_.empty()) sleep();
  if (ended_.empty()) return {};
  Ended first = std::move(ended_.front());
  ended_.pop_front();
  return first;
}

Fd Connector::State::Batch::only() {
  while (true) {
    auto ended = step();
    if (ended && ended->unmade) throw Error(ended->unmade->why);
    if (ended) return std::move(ended->fd);
  }
}

// A lifeline that the peer may have accepted goes on, unless the connector ends. If it were closed
// without a goodbye, the peer would believe that this rank was killed.
void Connector::State::Batch::end_interrupted() {
  for (auto entry = dials_.begin(); entry != dials_.end();) {
    const Dial& dial = *entry->second.dial;
    auto next = std::next(entry);
    bool goes_on = dial.to().channel == kLifelineChannel && dial.is_nearly_made();
    if (state_.is_interrupted(goes_on ? kNoGroup : dial.to().group))
      end(entry, Error(Code::kTransport,
                       fmt::format("{}: given up, for the communicator has failed", dial.link())));
    entry = next;
  }
}

void Connector::State::Batch::end(Entries::iterator entry, const Error& error) {
  const Dial& dial = *entry->second.dial;
  Error named(error.code(), error.what(), dial.to().peer);
  ended_.push_back({entry->first, Fd(), Unmade{named, dial.says_of_peer()}});
  dials_.erase(entry);
  has_news_ = true;  // another dial may wait for this one
}

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
          ended_.push_back({entry->first, dial.take(), {}});
          dials_.erase(entry);
          has_news_ = true;
        }
      } catch (const Error& error) {
        end(entry, error);
      }
    }
    entry = next;
  }
}

void Connector::State::Batch::sleep() {
  Clock::time_point until = Clock::now() + seconds(INFINITY);
  fds_.assign(1, {news_.get(), POLLIN, 0});
  if (!news_) until = std::min(until, Clock::now() + kBlind);
  polled_.clear();
  for (auto& [number, entry] : dials_) {
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

}  // namespace ringcoll

// Connections that either of a pair may need first.
//
// The higher rank connects as the lower does. Which of two that are made at once counts, the lower
// rank decides, under its lock: one of the higher's that comes when it has not begun to make its
// own is let in; else it is refused, for its own is on its way, which the higher always takes. It
// says which in one byte, so that the higher knows.
#include <sys/socket.h>

#include <utility>

#include "base/log.h"
#include "bootstrap/batch.h"
#include "bootstrap/connector_state.h"

namespace ringcoll {
namespace {

// A fresh connection has room for a byte, or is none that anybody wants.
void answer(int fd, char word) {
  [[maybe_unused]] ssize_t sent = ::send(fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

// Lifelines that come before anybody adopts them are parked, for who dials them.
void Connector::State::take_either(const Identity& identity, Fd fd) {
  auto [from, to, channel, of] = identity;
  bool is_lifeline = channel == kLifelineChannel;
  GroupNumber group_number = channel / kChannelsOfGroup;
  std::unique_lock turn(adopting, std::defer_lock);
  if (is_lifeline) turn.lock();
  bool adopts = is_lifeline && adopt;
  Fd adopted;
  {
    std::lock_guard lock(mutex);
    if (ended.contains(group_number)) return;
    Either& one = either[{from, channel}];
    if (from > rank && one.dialled) return answer(fd.get(), kCrossed);
    if (one.there && !one.fd) return;  // and in use
    if (from > rank) answer(fd.get(), kLetIn);
    one.error.reset();
    one.there = !is_lifeline || adopts;
    Fd& place = adopts ? adopted : is_lifeline ? parked[{from, channel}] : one.fd;
    place = std::move(fd);
  }
  if (adopts) adopt(from, std::move(adopted));
  if (!is_lifeline) tell_listener(group_number);
  tell_waiting();
}

void Connector::State::tell_listener(GroupNumber group) {
  std::function<void()> news;
  {
    std::lock_guard lock(mutex);
    auto listener = listeners.find(group);
    if (listener != listeners.end()) news = listener->second;
  }
  if (news) news();
}

void Connector::call(Rank peer, GroupNumber group, Deadline deadline) {
  State& state = *state_;
  State::Target to{peer, channel_of(group, kMessageChannel), messages_of(group)};
  {
    std::lock_guard lock(state.mutex);
    if (state.is_there(to)) return;
    state.calling[group]++;
  }
  bool runs = state.errands.run([&state, to, group, deadline] {
    Fd fd;
    std::optional<Error> failure;
    try {
      State::Batch batch(state, to.group, deadline);
      batch.call(to.peer, to.channel);
      fd = batch.only();
    } catch (const std::exception& error) {
      Error cause = as_error(error);
      failure = Error(cause.code(), cause.what(), to.peer);
    }
    {
      std::lock_guard lock(state.mutex);
      State::Either& one = state.either[{to.peer, to.channel}];
      if (fd) one.fd = std::move(fd);
      if (failure && !one.there) one.error = std::move(failure);
    }
    state.tell_listener(group);
    std::lock_guard lock(state.mutex);
    state.calling[group]--;
    state.changed.notify_all();
  });
  if (runs) return;
  std::lock_guard lock(state.mutex);
  state.calling[group]--;
  state.either[{to.peer, to.channel}].error =
      Error(Code::kTransport, "there is no thread to make a connection", peer);
}

Fd Connector::take_call(Rank peer, GroupNumber group) {
  std::lock_guard lock(state_->mutex);
  auto found = state_->either.find({peer, channel_of(group, kMessageChannel)});
  if (found == state_->either.end()) return {};
  if (found->second.fd) return std::move(found->second.fd);
  if (found->second.error) throw *found->second.error;
  return {};
}

std::vector<Rank> Connector::callers(GroupNumber group) {
  std::vector<Rank> peers;
  std::lock_guard lock(state_->mutex);
  for (const auto& [key, one] : state_->either)
    if (key.second == channel_of(group, kMessageChannel) && one.fd) peers.push_back(key.first);
  return peers;
}

void Connector::listen_for_calls(GroupNumber group, std::function<void()> news) {
  std::lock_guard lock(state_->mutex);
  state_->listeners[group] = std::move(news);
}

void Connector::end_calls(GroupNumber group) {
  State& state = *state_;
  state.interrupt(messages_of(group));
  std::unique_lock lock(state.mutex);
  state.listeners.erase(group);
  state.changed.wait(lock, [&] { return state.calling[group] == 0; });
  state.calling.erase(group);
  for (auto& [key, one] : state.either)
    if (key.second == channel_of(group, kMessageChannel)) one.fd = {};
}

bool Connector::call_lifeline(Rank peer, Deadline deadline, std::function<void(Fd)> adopt,
                              std::function<void()> done) {
  State& state = *state_;
  return state.errands.run(
      [&state, peer, deadline, adopt = std::move(adopt), done = std::move(done)] {
        try {
          State::Batch batch(state, kLifelines, deadline);
          batch.call(peer, kLifelineChannel);
          if (Fd fd = batch.only()) adopt(std::move(fd));
        } catch (const std::exception& error) {  // whatever it is, it may be tried again
          log_debug("no lifeline to rank {}: {}", peer, error.what());
        }
        done();
      });
}

void Connector::adopt_lifelines(std::function<void(Rank, Fd)> adopt) {
  State& state = *state_;
  std::lock_guard turn(state.adopting);
  state.adopt = std::move(adopt);
}

// A lifeline that is nearly made is not torn down: the peer, which has it already, would take this
// rank for one that was killed.
void Connector::stop() {
  State& state = *state_;
  state.errands.settle(kSettling);
  {
    std::lock_guard turn(state.adopting);
    state.adopt = {};
  }
  {
    std::lock_guard lock(state.mutex);
    state.stopping = true;
  }
  state.tell_waiting();
  state.errands.stop();
}

}  // namespace ringcoll

// Connections that either rank of a pair may make.
//
// The higher rank connects as the lower does. If both connect at once, the lower rank decides under
// its lock which connection counts. It accepts the one of the higher rank if it has not begun its
// own. Otherwise it refuses it and goes on with its own, which the higher rank always accepts. One
// byte tells the higher rank which of the two happened.
#include <sys/socket.h>

#include <utility>

#include "connect/worker.h"

namespace ringcoll {
namespace {

// The answer needs no retry: the send buffer of a fresh connection has room for a byte, or the
// connection is broken.
void answer(int fd, char word) {
  [[maybe_unused]] ssize_t sent = ::send(fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

// Lifelines that come before there is an `adopt` are parked for the thread that dials them.
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
    if (ended.find(group_number)) return;
    Either& one = either[{from, channel}];
    if (from > rank && one.dialled) return answer(fd.get(), kCrossed);
    if (one.there && !parked.contains({from, channel})) return;  // the first one is in use
    if (from > rank) answer(fd.get(), kLetIn);
    one.there = !is_lifeline || adopts;
    (adopts ? adopted : parked[{from, channel}]) = std::move(fd);
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

std::vector<Rank> Connector::peers_with_messages(GroupNumber group) {
  std::vector<Rank> peers;
  std::lock_guard lock(state_->mutex);
  for (const auto& [key, fd] : state_->parked)
    if (key.second == channel_of(group, kMessageChannel)) peers.push_back(key.first);
  return peers;
}

void Connector::listen_for_messages(GroupNumber group, std::function<void()> news) {
  std::lock_guard lock(state_->mutex);
  state_->listeners[group] = std::move(news);
}

void Connector::end_messages(GroupNumber group) {
  state_->interrupt(group);
  std::lock_guard lock(state_->mutex);
  state_->listeners.erase(group);
  std::erase_if(state_->parked, [&](const auto& entry) {
    return entry.first.second == channel_of(group, kMessageChannel);
  });
}

void Connector::adopt_lifelines(std::function<void(Rank, Fd)> adopt) {
  State& state = *state_;
  std::lock_guard turn(state.adopting);
  state.adopt = std::move(adopt);
}

// Lifelines in the making get kSettling to complete: if one were closed, a peer that has it already
// would believe that this rank was killed. For the same reason the gates close before `adopt` is
// cleared, so that no lifeline is accepted that nobody would adopt.
void Connector::stop() {
  State& state = *state_;
  state.worker->settle(kSettling);
  for (auto& gate : state.gates) {
    if (gate) state.rejected_before += gate->rejected();
    gate.reset();
  }
  {
    std::lock_guard turn(state.adopting);
    state.adopt = {};
  }
  {
    std::lock_guard lock(state.mutex);
    state.stopping = true;
  }
  state.tell_waiting();
  state.worker->stop();
}

}  // namespace ringcoll

// Connections that either of a pair may need first.
//
// The higher rank connects as the lower does. Which of two that are made at once counts, the lower
// rank decides, under its lock: one of the higher's that comes when it has not begun to make its
// own is let in; else it is refused, for its own is on its way, which the higher always takes. It
// says which in one byte, so that the higher knows.
#include "bootstrap/calls.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "bootstrap/batch.h"

namespace ringcoll {
namespace {

// A fresh connection has room for a byte, or is none that anybody wants.
void answer(int fd, char word) {
  [[maybe_unused]] ssize_t sent = ::send(fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

// ---- Making them ----

bool Connector::State::Calls::begin(const Target& to, Deadline deadline, Done done) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || (!working_ && !start_thread())) return false;
    asked_.push_back({to, deadline, std::move(done)});
  }
  state_.tell_waiting();
  return true;
}

// Under the lock.
bool Connector::State::Calls::start_thread() {
  // The new thread inherits the mask: signals are for the threads of the application.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { work(); }).detach();
    working_ = true;
  } catch (const std::system_error& error) {
    log_debug("a thread for connections: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return working_;
}

// The last thing that it touches is the lock, under which it says that it is over.
void Connector::State::Calls::work() {
  std::unique_lock lock(mutex_);
  std::optional<Batch> batch;
  batch.emplace(state_, kLifelines, Deadline(Duration::zero()));  // neither is of any call
  Waiting waiting;
  for (take_asked(*batch, waiting); !batch->empty(); take_asked(*batch, waiting)) {
    lock.unlock();
    if (auto ended = batch->step()) {
      auto call = waiting.extract(waiting.find({ended->to.peer, ended->to.channel}));
      call.mapped()(std::move(ended->fd), ended->unmade);
    }
    lock.lock();
  }
  batch.reset();
  working_ = false;
  over_.notify_all();
}

// Under the lock.
void Connector::State::Calls::take_asked(Batch& batch, Waiting& waiting) {
  for (; !asked_.empty(); asked_.pop_front()) {
    Call& call = asked_.front();
    batch.call(call.to, call.deadline);
    waiting.emplace(std::pair(call.to.peer, call.to.channel), std::move(call.done));
  }
}

void Connector::State::Calls::settle(Duration limit) {
  std::unique_lock lock(mutex_);
  over_.wait_for(lock, limit, [this] { return !working_; });
}

void Connector::State::Calls::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  over_.wait(lock, [this] { return !working_; });
}

// ---- Letting them in ----

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
    if (ended.find(group_number)) return;
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
  auto end = [&state, to, group](Fd fd, std::optional<Error> failure) {
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
  };
  bool begun = state.calls->begin(to, deadline, [end](Fd fd, const std::optional<Unmade>& unmade) {
    end(std::move(fd), unmade ? std::optional(unmade->why) : std::nullopt);
  });
  if (!begun) end(Fd(), Error(Code::kTransport, "there is no thread to make a connection", peer));
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
                              std::function<void(const std::optional<Unmade>&)> done) {
  return state_->calls->begin(
      {peer, kLifelineChannel, kLifelines}, deadline,
      [peer, adopt = std::move(adopt), done = std::move(done)](
          Fd fd, const std::optional<Unmade>& unmade) {
        if (unmade) log_debug("no lifeline to rank {}: {}", peer, unmade->why.what());
        try {
          if (fd) adopt(std::move(fd));
        } catch (const std::exception& error) {  // the peer's has come first, say
          log_debug("a lifeline to rank {} is not taken: {}", peer, error.what());
        }
        done(unmade);
      });
}

void Connector::adopt_lifelines(std::function<void(Rank, Fd)> adopt) {
  State& state = *state_;
  std::lock_guard turn(state.adopting);
  state.adopt = std::move(adopt);
}

// A lifeline that is nearly made is not torn down: the peer, which has it already, would take this
// rank for one that was killed. For the same reason nobody is let in any more whose lifeline nobody
// would adopt.
void Connector::stop() {
  State& state = *state_;
  state.calls->settle(kSettling);
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
  state.calls->stop();
}

}  // namespace ringcoll

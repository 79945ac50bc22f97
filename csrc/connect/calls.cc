// Connections that either rank of a pair may make.
//
// The higher rank connects as the lower does. If both connect at once, the lower rank decides under
// its lock which connection counts. It accepts the one of the higher rank if it has not begun its
// own. Otherwise it refuses it and goes on with its own, which the higher rank always accepts. One
// byte tells the higher rank which of the two happened.
#include "connect/calls.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "connect/batch.h"

namespace ringcoll {
namespace {

// The answer needs no retry: the send buffer of a fresh connection has room for a byte, or the
// connection is broken.
void answer(int fd, char word) {
  [[maybe_unused]] ssize_t sent = ::send(fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

// ---- Connections that this rank makes ----

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
  // The new thread inherits the mask: signals are for the application's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { work(); }).detach();
    working_ = true;
  } catch (const std::system_error& error) {
    log_debug("no thread that makes connections can be started: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return working_;
}

// Runs in a detached thread. Once `working_` is false, stop() may return and this object may end.
// So this function touches nothing afterwards but the lock that it holds.
void Connector::State::Calls::work() {
  std::unique_lock lock(mutex_);
  std::optional<Batch> batch;
  batch.emplace(state_, kLifelines, Deadline(Duration::zero()));  // unused: each call names its own
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

// ---- Connections that peers make ----

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
    if (one.there && !one.fd) return;  // the first one is in use
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
  if (!begun)
    end(Fd(), Error(Code::kTransport,
                    "no thread that makes the connection can be started; raise the limits of "
                    "threads (ulimit -u, pids.max)",
                    peer));
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
        } catch (const std::exception& error) {  // for example, the peer's lifeline has come first
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

// Lifelines in the making get kSettling to complete: if one were closed, a peer that has it already
// would believe that this rank was killed. For the same reason the gates close before `adopt` is
// cleared, so that no lifeline is accepted that nobody would adopt.
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

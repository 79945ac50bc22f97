#include "connect/gate.h"

#include <sys/socket.h>
#include <sys/timerfd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

// How often deadlines are checked, and how long a connection keeps its place for certain when all
// places are taken.
constexpr Duration kTick = std::chrono::milliseconds(250);

struct Pending {
  Fd fd;
  Challenger challenger;
  std::array<char, 128> buffer{};  // larger than any message
  size_t filled = 0;
  Clock::time_point since = Clock::now();
};

Address peer_of(int fd) {
  try {
    return peer_address(fd);
  } catch (const Error&) {
    return {};  // the peer is gone
  }
}

}  // namespace

struct Gate::State {
  State(const Address& where, EventLoop& on, Limits within)
      : loop(on),
        limits(within),
        listener(listen_on(where)),
        address(local_address(listener.get())) {
    timer = Fd(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    check(static_cast<bool>(timer), Code::kTransport, "{}", errno_text("timerfd_create", errno));
  }

  EventLoop& loop;
  const Limits limits;
  Fd listener;
  Fd timer;
  Address address;
  AuthPolicy policy;
  Accepted accepted;
  Refused refused;
  std::atomic<uint64_t> rejected{0};

  std::mutex mutex;
  bool open = false;
  bool closing = false;  // callbacks that still run then change nothing
  enum class Accepting { kYes, kWhenAPlaceIsFree, kAtNextTick };
  Accepting accepting = Accepting::kYes;
  std::map<int, Pending> pending;

  void arm_timer() {
    itimerspec spec{};
    spec.it_value.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(kTick).count();
    timerfd_settime(timer.get(), 0, &spec, nullptr);
  }

  // `looked_only`: the peer closed the connection without sending anything. It only probed whether
  // this rank listens, as a rank does that waits for this one (connect/dial.cc).
  void drop(std::map<int, Pending>::iterator entry, bool looked_only = false) {
    if (!looked_only)
      rejected.fetch_add(1, std::memory_order_relaxed);  // before the peer can see the close
    loop.forget(entry->first);
    leave(entry);
  }

  void leave(std::map<int, Pending>::iterator entry) {
    pending.erase(entry);
    if (accepting == Accepting::kWhenAPlaceIsFree) accept_again();
  }

  void accept_again() {
    accepting = Accepting::kYes;
    loop.watch(listener.get(), [this](uint32_t) { on_listener(); });
  }

  // Makes room by dropping the oldest connection, unless that has only just come.
  bool make_room() {
    if (pending.size() < limits.connections) return true;
    auto oldest = pending.begin();
    for (auto entry = pending.begin(); entry != pending.end(); ++entry)
      if (entry->second.since < oldest->second.since) oldest = entry;
    if (Clock::now() - oldest->second.since < kTick) return false;
    drop(oldest);
    return true;
  }

  void on_listener() {
    std::lock_guard lock(mutex);
    if (closing) return;
    arm_timer();
    while (make_room()) {
      Fd fd = Fd::made_by(
          [&] { return accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
      if (!fd && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED)) return;
      // For example, the process has no descriptors left. The listener stays readable, so the next
      // try waits for the next tick.
      if (!fd) return stop_accepting(Accepting::kAtNextTick);
      admit(std::move(fd));
    }
    stop_accepting(Accepting::kWhenAPlaceIsFree);
  }

  // The next tick ends both states: by then the oldest connection can be dropped.
  void stop_accepting(Accepting until) {
    accepting = until;
    loop.forget(listener.get());
  }

  void admit(Fd fd) {
    int number = fd.get();
    tune(number);
    pending.emplace(number, Pending{std::move(fd), Challenger(policy)});
    try {
      loop.watch(number, [this, number](uint32_t) { on_readable(number); });
    } catch (const Error& error) {
      log_warning("an incoming connection is dropped: {}", error.what());
      pending.erase(number);
    }
  }

  void on_timer() {
    std::lock_guard lock(mutex);
    if (closing) return;
    uint64_t expirations;
    [[maybe_unused]] ssize_t got = ::read(timer.get(), &expirations, sizeof expirations);
    for (auto entry = pending.begin(); entry != pending.end();) {
      auto next = std::next(entry);
      if (Clock::now() - entry->second.since > limits.deadline) drop(entry);
      entry = next;
    }
    if (accepting != Accepting::kYes) accept_again();
    if (!pending.empty()) arm_timer();
  }

  void on_readable(int number) {
    std::unique_lock lock(mutex);
    if (closing) return;
    auto entry = pending.find(number);
    if (entry == pending.end()) return;
    if (!converse(entry->second)) {
      const Challenger& challenger = entry->second.challenger;
      Refusal refusal{challenger.verdict(), challenger.identity(), peer_of(number)};
      // A peer that closed has not been refused: it may be any process, or may come again.
      bool is_refused = challenger.state() == Challenger::State::kRefused;
      drop(entry, challenger.state() == Challenger::State::kHello && entry->second.filled == 0);
      lock.unlock();
      if (is_refused && refusal.claimed.from != kNobody) refused(refusal);
      return;
    }
    if (entry->second.challenger.state() != Challenger::State::kAccepted) return;
    loop.forget(number);
    Identity identity = entry->second.challenger.identity();
    Fd fd = std::move(entry->second.fd);
    leave(entry);
    lock.unlock();
    accepted(identity, std::move(fd));
  }

  // Reads no more than the next message: the data after the proof belongs to the owner of the
  // connection. False: drop the connection.
  bool converse(Pending& connection) {
    for (;;) {
      size_t wanted = connection.challenger.wanted();
      if (wanted == 0) return connection.challenger.state() == Challenger::State::kAccepted;
      ssize_t got = recv(connection.fd.get(), connection.buffer.data() + connection.filled,
                         wanted - connection.filled, MSG_DONTWAIT);
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      if (got == 0) return false;
      connection.filled += static_cast<size_t>(got);
      if (connection.filled < wanted) continue;
      std::string reply = connection.challenger.answer({connection.buffer.data(), wanted});
      connection.filled = 0;
      // Not retried: the send buffer of a fresh connection has room for these few bytes, or the
      // connection is broken.
      ssize_t sent =
          send(connection.fd.get(), reply.data(), reply.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent != static_cast<ssize_t>(reply.size())) return false;
    }
  }
};

Gate::Gate(const Address& address, EventLoop& loop) : Gate(address, loop, Limits{}) {}
Gate::Gate(const Address& address, EventLoop& loop, Limits limits)
    : state_(std::make_unique<State>(address, loop, limits)) {}

Gate::~Gate() {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    state.closing = true;
  }
  // From here on only this thread changes `pending`.
  state.loop.forget(state.listener.get());
  state.loop.forget(state.timer.get());
  for (auto& [number, connection] : state.pending) state.loop.forget(number);
  // A connection that was accepted or refused has left `pending`, but its callback may still run.
  state.loop.settle();
}

const Address& Gate::address() const { return state_->address; }

void Gate::open(AuthPolicy policy, Accepted accepted, Refused refused) {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    invariant(!std::exchange(state.open, true), "a gate is opened once");
    state.policy = std::move(policy);
    state.accepted = std::move(accepted);
    state.refused = std::move(refused);
  }
  state.loop.watch(state.timer.get(), [&state](uint32_t) { state.on_timer(); });
  state.loop.watch(state.listener.get(), [&state](uint32_t) { state.on_listener(); });
}

uint64_t Gate::rejected() const { return state_->rejected.load(std::memory_order_relaxed); }

}  // namespace ringcoll

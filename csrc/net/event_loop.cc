#include "net/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "base/threads.h"

namespace ringcoll {
namespace {

// Events carry the number of the registration, not the descriptor. So an event that was already
// fetched finds no callback if its descriptor is forgotten and the number reused.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kTaskId = UINT64_MAX;
constexpr int kEventsPerTurn = 64;

struct Watch {
  int fd = -1;
  std::function<void(uint32_t)> ready;
};

}  // namespace

struct EventLoop::State {
  using Watches = std::unordered_map<uint64_t, Watch>;

  Fd epoll;
  Fd wake;
  std::mutex mutex;
  std::condition_variable not_running;
  Watches watches;  // by registration; nodes do not move, so a callback can run unlocked
  std::unordered_map<int, uint64_t> ids;
  std::multimap<Clock::time_point, std::function<void()>> timers;
  Watches::node_type forgotten;  // a callback that forgot itself; freed once it has returned
  uint64_t next_id = kWakeId + 1;
  uint64_t running = kWakeId;  // kWakeId: none
  uint64_t finished = 0;       // callbacks and tasks that have returned
  bool stopping = false;
  std::thread thread;
  std::thread::id runner;  // the thread that runs callbacks
  std::optional<Error> threadless;

  void signal_wake() {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wake.get(), &one, sizeof one);
  }

  void control(int operation, int fd, uint64_t id, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    check(epoll_ctl(epoll.get(), operation, fd, &event) == 0, Code::kTransport, "{}",
          errno_text("epoll_ctl", errno));
  }

  int wait_ms(int limit_ms) {
    std::lock_guard lock(mutex);
    if (timers.empty()) return limit_ms;
    int due_ms = Deadline(timers.begin()->first - Clock::now()).left_ms();
    return limit_ms < 0 ? due_ms : std::min(due_ms, limit_ms);
  }

  void run_timers() {
    for (;;) {
      std::function<void()> task;
      {
        std::lock_guard lock(mutex);
        if (stopping || timers.empty() || timers.begin()->first > Clock::now()) return;
        task = std::move(timers.extract(timers.begin()).mapped());
        running = kTaskId;
      }
      task();
      task = nullptr;
      finish();
    }
  }

  void finish() {
    Watches::node_type freed;
    {
      std::lock_guard lock(mutex);
      freed = std::move(forgotten);
    }
    // What the callback captured is freed before any waiter learns that it has returned.
    freed = {};
    {
      std::lock_guard lock(mutex);
      running = kWakeId;
      finished++;
    }
    not_running.notify_all();
  }

  void run_watch(uint64_t id, uint32_t events) {
    Watch* watch;
    {
      std::lock_guard lock(mutex);
      auto found = watches.find(id);
      if (stopping || found == watches.end()) return;
      watch = &found->second;
      running = id;
    }
    watch->ready(events);
    finish();
  }

  // Below 0: without limit.
  void turn(int limit_ms) {
    std::array<epoll_event, kEventsPerTurn> events;
    int count = epoll_wait(epoll.get(), events.data(), kEventsPerTurn, wait_ms(limit_ms));
    for (int i = 0; i < count; i++) {
      if (events[i].data.u64 == kWakeId) {
        uint64_t value;
        [[maybe_unused]] ssize_t got = ::read(wake.get(), &value, sizeof value);
      } else {
        run_watch(events[i].data.u64, events[i].events);
      }
    }
    run_timers();
  }

  void run() {
    for (;;) {
      turn(-1);
      std::lock_guard lock(mutex);
      if (stopping) return;
    }
  }
};

EventLoop::EventLoop(const char* thread_name, Thread thread) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.epoll = Fd(epoll_create1(EPOLL_CLOEXEC));
  check(static_cast<bool>(state.epoll), Code::kTransport, "{}", errno_text("epoll_create1", errno));
  state.wake = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  check(static_cast<bool>(state.wake), Code::kTransport, "{}", errno_text("eventfd", errno));
  state.control(EPOLL_CTL_ADD, state.wake.get(), kWakeId, EPOLLIN);
  state.runner = std::this_thread::get_id();
  try {
    state.thread = start_thread(thread_name, [&state] { state.run(); });
    state.runner = state.thread.get_id();
  } catch (const Error& error) {
    if (thread == Thread::kNeeded) throw;
    state.threadless = error;
  }
}

EventLoop::~EventLoop() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->signal_wake();
  if (state_->thread.joinable()) state_->thread.join();
}

void EventLoop::watch(int fd, std::function<void(uint32_t events)> ready) {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  invariant(!state.ids.contains(fd), "descriptor {} is watched already", fd);
  uint64_t id = state.next_id++;
  state.control(EPOLL_CTL_ADD, fd, id, EPOLLIN);
  state.ids[fd] = id;
  state.watches.emplace(id, Watch{fd, std::move(ready)});
}

void EventLoop::also_writable(int fd, bool on) {
  State& state = *state_;
  std::lock_guard lock(state.mutex);
  auto found = state.ids.find(fd);
  invariant(found != state.ids.end(), "descriptor {} is not watched", fd);
  state.control(EPOLL_CTL_MOD, fd, found->second, on ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void EventLoop::forget(int fd) {
  State& state = *state_;
  State::Watches::node_type node;  // freed after the lock: what it captured may lock something
  std::unique_lock lock(state.mutex);
  auto found = state.ids.find(fd);
  if (found == state.ids.end()) return;
  uint64_t id = found->second;
  state.ids.erase(found);
  node = state.watches.extract(id);
  // Fails only if the owner has closed the descriptor already, which also removed it from the
  // epoll.
  epoll_ctl(state.epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (state.running != id) return;
  if (on_loop_thread())
    state.forgotten = std::move(node);
  else
    state.not_running.wait(lock, [&] { return state.running != id; });
}

void EventLoop::settle() {
  std::unique_lock lock(state_->mutex);
  if (state_->running == kWakeId) return;
  uint64_t now = state_->finished;
  state_->not_running.wait(lock, [&] { return state_->finished != now; });
}

void EventLoop::after(Duration delay, std::function<void()> task) {
  {
    std::lock_guard lock(state_->mutex);
    state_->timers.emplace(Clock::now() + delay, std::move(task));
  }
  state_->signal_wake();
}

bool EventLoop::on_loop_thread() const { return std::this_thread::get_id() == state_->runner; }

const std::optional<Error>& EventLoop::threadless() const { return state_->threadless; }

void EventLoop::turn(Duration limit) {
  invariant(state_->threadless.has_value() && on_loop_thread(), "a loop is turned by its thread");
  state_->turn(Deadline(limit).left_ms());
}

}  // namespace ringcoll

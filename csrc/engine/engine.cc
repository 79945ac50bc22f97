#include "engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/collectives.h"
#include "base/interruption.h"
#include "base/log.h"
#include "base/threads.h"

namespace ringcoll {
namespace {

// To wake a thread costs microseconds, and it may take the CPU from one that a peer waits for
// (docs/design.md, "Threads and waiting"). So:
// - the worker naps while calls gather;
constexpr Duration kNap = std::chrono::microseconds(20);
// - where who starts calls waits for them at once, and so executes them, it looks only now and then
//   whether that is still so: first after so long, and more and more seldom;
constexpr Duration kFirstNap = std::chrono::microseconds(100);
constexpr Duration kLongestNap = std::chrono::microseconds(800);
// - who sleeps until the end of a call is woken so long after it at the latest, while others go on;
constexpr Duration kLatestAlarm = std::chrono::microseconds(20);
// - who executes because it waits stays for so long after the end of its call, where more are in
//   flight; what takes longer is the worker's, and worth the hand-over. The latter where it mostly
//   waits for the next.
constexpr Duration kStay = std::chrono::microseconds(20), kLongStay = std::chrono::milliseconds(1);
// By how much the worker's sleep may be longer than asked for. The kernel's default is 50 us.
constexpr unsigned long kTimerSlackNs = 1000;

// Whose callback this thread is in. What the engine would do next has to wait until it returns.
thread_local const Engine* calling_back = nullptr;

std::shared_ptr<Post> make_post(Communicator& comm) {
  return std::make_shared<Post>(
      [&comm]() -> MessageChannels& { return comm.group().messages(); },
      Post::Options{
          .rank = comm.rank(),
          .size = comm.size(),
          .health = comm.group().health(),
          .timeout_s = comm.config().timeout_s,
          .yields = comm.channels().yields(),
          .describe = [&comm](Rank rank) { return comm.topology().describe(rank); },
      });
}

}  // namespace

CallbackScope::CallbackScope(const Engine* engine) : outer_(std::exchange(calling_back, engine)) {}
CallbackScope::~CallbackScope() { calling_back = outer_; }
const Engine* CallbackScope::current() { return calling_back; }

CallRequest::CallRequest(const rc_call& raw, Engine& engine, Done done)
    : engine_(&engine), link_(engine.link()), tell_(std::move(done)) {
  const Rank size = engine.comm().size();
  check_buffer_count(raw);
  rc_call copy = raw;
  if (raw.buffers && raw.buffer_count > 0)
    buffers_.assign(raw.buffers, raw.buffers + raw.buffer_count);
  if (raw.counts) counts_.assign(raw.counts, raw.counts + size);
  if (raw.recv_counts) recv_counts_.assign(raw.recv_counts, raw.recv_counts + size);
  if (raw.buffers) copy.buffers = buffers_.data();
  if (raw.counts) copy.counts = counts_.data();
  if (raw.recv_counts) copy.recv_counts = recv_counts_.data();
  call_ = check_call(copy, engine.comm().rank(), size);
}

bool CallRequest::may_wait() {
  std::lock_guard lock(mutex_);
  return has_ended_here() || calling_back != engine_;
}

bool CallRequest::wait(double limit_s) {
  std::unique_lock lock(mutex_);
  auto ended = [this] { return has_ended_here(); };
  awaited_ = awaited_ || limit_s != 0;
  if (limit_s < 0) link_->habit.waits();
  if (!ended() && limit_s != 0) {
    lock.unlock();
    if (std::unique_lock link(link_->mutex); link_->engine) {
      if (limit_s < 0)
        link_->engine->help(*this, std::move(link));
      else
        link_->engine->hurry();
    }
    lock.lock();
    sleepers_++;
    if (limit_s >= 0)
      ended_.wait_for(lock, seconds(limit_s), ended);
    else
      sleep(lock);
    sleepers_--;
  }
  if (limit_s < 0) Habit::leave_library();
  if (!ended()) return false;
  if (error_) throw *error_;
  return true;
}

void CallRequest::sleep(std::unique_lock<std::mutex>& lock) {
  auto ended = [this] { return has_ended_here(); };
  while (Interruption::watches()) {
    if (ended_.wait_for(lock, Interruption::kEvery, ended)) return;
    lock.unlock();
    Interruption::look();
    lock.lock();
  }
  ended_.wait(lock, ended);
}

// It has ended for others after the callback has returned, for they may then free what that uses;
// the callback's own thread sees the end before (has_ended_here), or it could not ask for the
// result.
bool CallRequest::end(std::optional<Error> error) {
  std::unique_lock lock(mutex_);
  error_ = std::move(error);
  if (tell_) {
    teller_ = std::this_thread::get_id();
    lock.unlock();
    {
      CallbackScope scope(engine_);
      tell_(error_);
    }
    tell_ = {};
    lock.lock();
    teller_ = {};
  }
  done_ = true;
  return sleepers_ > 0;
}

void CallRequest::wake() { ended_.notify_all(); }

Engine::Engine(Config config, std::string name, Exchange& exchange)
    : comm_(std::move(config), std::move(name), exchange),
      executor_(comm_),
      link_(std::make_shared<EngineLink>(this)),
      post_(make_post(comm_)) {}
Engine::Engine(std::unique_ptr<Group> group, std::string name)
    : comm_(std::move(group), std::move(name)),
      executor_(comm_),
      link_(std::make_shared<EngineLink>(this)),
      post_(make_post(comm_)) {}

std::unique_ptr<Engine> Engine::of(std::unique_ptr<Group> group, std::string name) {
  std::shared_ptr<Mesh> mesh = group->shared_mesh();
  GroupNumber number = group->number();
  try {
    return std::make_unique<Engine>(std::move(group), std::move(name));
  } catch (const std::exception& error) {  // of whatever kind
    mesh->lifelines().fail(number, as_error(error));
    throw;
  }
}

void Engine::close() {
  std::deque<std::shared_ptr<CallRequest>> left;
  {
    std::lock_guard lock(link_->mutex);
    link_->engine = nullptr;
  }
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    left.swap(queue_);
    queued_ = 0;
    changed_.notify_all();
    if (running_)
      comm_.poison(Error(
          Code::kAborted,
          fmt::format("rank {} closed the communicator while a call was running", comm_.rank()),
          comm_.rank()));
  }
  link_->nap.end();
  // First, so that calls end in their order. It is the last to execute.
  if (worker_.joinable()) worker_.join();
  for (auto& request : left) {
    request->end(Error(Code::kAborted, "the communicator was closed before this call began"));
    request->wake();
  }
  post_->close();
}

std::unique_ptr<Engine> Engine::shrink(std::string name) {
  check(!is_calling_back(), Code::kInvalidArgument,
        "a completion callback cannot wait for the other ranks of its own communicator: shrink it "
        "in another thread");
  std::lock_guard lock(shrinking_);
  return of(comm_.shrink([this, before = aborts_.load()] { return aborts_ != before; }),
            std::move(name));
}

void Engine::abort(std::string_view reason) {
  aborts_++;
  comm_.poison(
      Error(Code::kAborted,
            fmt::format("aborted by {}: {}", comm_.topology().describe(comm_.rank()), reason),
            comm_.rank()));
}

std::unique_ptr<Engine> Engine::split(std::span<const Rank> ranks, std::string name) {
  auto gather = [this](const void* mine, int64_t bytes, void* all, const int64_t* counts) {
    rc_buffer buffer{mine, all, bytes};
    rc_call call{};
    call.struct_size = sizeof call;
    call.collective = RC_ALLGATHER;
    call.dtype = RC_UINT8;
    call.buffers = &buffer;
    call.buffer_count = 1;
    call.counts = counts;
    run(call);
  };
  auto group = comm_.split(ranks, gather);
  return group ? of(std::move(group), std::move(name)) : nullptr;
}

bool Engine::is_calling_back() const { return calling_back == this; }

bool Engine::begin_if_idle() { return queued_ == 0 && !running_.exchange(true); }

// Whoever queues a request counts it before it looks whether something runs; here it is the other
// way round, so that one of the two sees the other.
void Engine::end() {
  running_ = false;
  if (queued_ == 0) return;
  {
    std::lock_guard lock(mutex_);
  }  // not between the worker's look and its sleep
  changed_.notify_all();
}

void Engine::run(const rc_call& raw) {
  check(!is_calling_back(), Code::kInvalidArgument,
        "a completion callback cannot wait for a call on its own communicator: start it "
        "(ringcoll_start)");
  if (!raw.interrupted) return run_now(raw);
  Interruption interruption(
      [this, &raw] { return asks(raw); },
      [this, &raw] {
        abort(fmt::format("interrupted in its {}", traits_of(raw.collective).name));
      });
  run_now(raw);
}

void Engine::run_now(const rc_call& raw) {
  if (!begin_if_idle()) {  // behind those that were submitted before
    auto request = std::make_shared<CallRequest>(raw, *this);
    start(request);
    request->wait(-1);
    return;
  }
  struct Ender {
    Engine* engine;
    ~Ender() { engine->end(); }
  } ender{this};
  executor_.run(check_(raw));
}

// The others, who make the same call, are told if this rank cannot.
void Engine::make_worker() {
  if (worker_.joinable()) return;
  try {
    worker_ = start_thread("ringcoll-worker", [this] { work(); });
  } catch (const std::exception& error) {
    comm_.poison(as_error(error));
    throw;
  }
}

void Engine::start(std::shared_ptr<CallRequest> request) {
  bool wakes = false;
  {
    std::lock_guard lock(mutex_);
    check(!stopping_, Code::kAborted, "the communicator is being closed");
    make_worker();
    gathering_ = newest_ && !newest_->awaited();
    if (!gathering_) link_->habit.batch_begins();
    callbacks_ += request->calls_back();
    newest_ = request;
    queue_.push_back(std::move(request));
    queued_++;
    // Who executes sees it. A nap ends by itself; but for what is not one of a batch, and nobody
    // will help with, at once.
    wakes = !running_ && !link_->nap.taken();
    if (!wakes && !gathering_ && !will_be_helped()) link_->nap.end();
  }
  if (wakes) changed_.notify_all();
  // Who executes may be asleep in a wait for a peer, with room for this one.
  executor_.look_again();
  Habit::leave_library();
}

/// A thread's turn at executing calls that were started, from when it has taken that up.
class Engine::Turn final : public CallSource {
 public:
  /// `awaited`: the one that this thread waits for; null: it is the worker.
  Turn(Engine& engine, const CallRequest* awaited) : engine_(engine), awaited_(awaited) {}

  /// Until all have ended, or it leaves the rest.
  void take();

 private:
  bool has_next() const override { return engine_.queued_ > 0 && !is_not_for_this(); }
  const Call* next() override;
  void ended(std::optional<Error> error, bool last) override;
  bool look_up(bool blocks) override;
  bool is_not_for_this() const { return awaited_ && !engine_.may_be_helped(); }
  void wake_sleepers();
  void leave();

  Engine& engine_;
  const CallRequest* awaited_;
  std::optional<Deadline> stay_;  // since that has ended
  // Whose calls have ended and who sleep still, to be woken together,
  std::vector<std::shared_ptr<CallRequest>> unwoken_;
  Clock::time_point alarm_;  // then at the latest.
};

void Engine::Turn::take() {
  switch (engine_.executor_.run_all(*this)) {
    case Executed::kNothing:  // close() took the queue, or what is in it is the worker's
      return engine_.end();
    case Executed::kAll:
      return;
    case Executed::kPart:
      return leave();
  }
}

const Call* Engine::Turn::next() {
  if (engine_.queued_ == 0) return nullptr;
  std::lock_guard lock(engine_.mutex_);
  auto& queue = engine_.queue_;
  if (queue.empty() || is_not_for_this()) return nullptr;
  engine_.in_flight_.push_back(std::move(queue.front()));
  queue.pop_front();
  engine_.queued_--;
  return &engine_.in_flight_.back()->call_;
}

void Engine::Turn::ended(std::optional<Error> error, bool last) {
  auto request = std::move(engine_.in_flight_.front());
  engine_.in_flight_.pop_front();
  // First, for who hears of the last request's end may close the engine: nothing runs any more.
  if (last) engine_.running_ = false;
  // A callback may wait for what a sleeper does next.
  const bool calls_back = request->calls_back();
  if (calls_back) wake_sleepers();
  if (awaited_) engine_.helped_++;
  if (request.get() == awaited_)
    stay_ = Deadline(engine_.link_->habit.goes_on() ? kLongStay : kStay);
  const bool sleeps = request->end(std::move(error));
  engine_.callbacks_ -= calls_back;
  if (sleeps) {
    engine_.gathering_ = false;
    if (unwoken_.empty()) alarm_ = Clock::now() + kLatestAlarm;
    unwoken_.push_back(std::move(request));
  }
  look_up(last);
}

bool Engine::Turn::look_up(bool blocks) {
  if (!unwoken_.empty() && (blocks || Clock::now() >= alarm_)) wake_sleepers();
  return is_not_for_this() || (stay_ && (blocks || stay_->passed()));
}

void Engine::Turn::wake_sleepers() {
  for (auto& request : unwoken_) request->wake();
  unwoken_.clear();
}

void Engine::Turn::leave() {
  wake_sleepers();
  {
    std::lock_guard lock(engine_.mutex_);
    engine_.left_ = true;
  }
  engine_.hurry();
  engine_.changed_.notify_all();
}

// With the lock: whether this thread executes from here on.
bool Engine::take_up() { return queued_ > 0 && !running_.exchange(true); }

void Engine::help(const CallRequest& awaited, std::unique_lock<std::mutex> link) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || !may_be_helped() || !take_up()) {
      if (has_work()) hurry();
      return;
    }
    helpers_++;
  }
  link.unlock();
  Turn(*this, &awaited).take();
  std::lock_guard lock(mutex_);
  helpers_--;
  if (has_work()) hurry();                             // somebody came who could not take the turn
  if (is_over() || has_work()) changed_.notify_all();  // with the lock: it may be closing
}

// Callbacks run on the worker alone (rc_done_fn). And who executes the batches of one communicator
// after the other waits for each; workers take all of them along at a time.
bool Engine::may_be_helped() const { return callbacks_ == 0 && !(gathering_ && waits_long_); }
bool Engine::will_be_helped() const { return link_->habit.waits_soon() && may_be_helped(); }

// Where others execute a start needs not even wake the worker, as long as it naps.
void Engine::nap_while_helped(std::unique_lock<std::mutex>* lock) {
  uint64_t before = 0;
  Duration nap = kFirstNap;
  do {
    if (stopping_ || left_ || !will_be_helped()) return;
    before = helped_;
    lock->unlock();
    link_->nap.take(nap, [this] { return stopping_ || left_ || !may_be_helped(); });
    lock->lock();
    nap = std::min(2 * nap, kLongestNap);
  } while (!has_work() && helped_ != before);
}

void Engine::work() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_over() || has_work(); });
    nap_while_helped(&lock);
    if (!left_.exchange(false) && !take_up()) {
      if (is_over()) return;
      continue;
    }
    link_->habit.forget();
    lock.unlock();
    Turn(*this, nullptr).take();
    if (gathering_) link_->nap.take(kNap, [this] { return has_work() || stopping_; });
    lock.lock();
  }
}

}  // namespace ringcoll

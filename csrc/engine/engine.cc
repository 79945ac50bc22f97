#include "engine/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <utility>

#include "base/log.h"

namespace ringcoll {
namespace {

// To wake a thread costs microseconds, and it may take the CPU from one that a peer waits for. A
// batch of short calls (docs/design.md, "Waiting") would wake the worker for each that is
// submitted, and who waits for each that ends. Instead the worker naps while they gather:
constexpr Duration kNap = std::chrono::microseconds(20);
// and who waits is woken so long after the end of the call at the latest, while others go on.
constexpr Duration kLatestAlarm = std::chrono::microseconds(20);
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
    : engine_(&engine), nap_(engine.nap()), tell_(std::move(done)) {
  const Rank size = engine.comm().size();
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
  check(limit_s == 0 || may_wait(), Code::kInvalidArgument,
        "a completion callback waits for a call of its own communicator, which cannot end before "
        "the callback has returned: give that call a callback of its own");
  std::unique_lock lock(mutex_);
  auto ended = [this] { return has_ended_here(); };
  awaited_ = awaited_ || limit_s != 0;
  if (!ended() && limit_s != 0) {
    sleepers_++;
    lock.unlock();
    nap_->end();
    lock.lock();
    if (limit_s < 0)
      ended_.wait(lock, ended);
    else
      ended_.wait_for(lock, seconds(limit_s), ended);
    sleepers_--;
  }
  if (!ended()) return false;
  if (error_) throw *error_;
  return true;
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

void CallRequest::wake() {
  std::lock_guard lock(mutex_);
  ended_.notify_all();
}

Engine::Engine(Config config, std::string name, Exchange& exchange)
    : comm_(std::move(config), std::move(name), exchange),
      executor_(comm_),
      post_(make_post(comm_)) {}
Engine::Engine(std::unique_ptr<Group> group, std::string name)
    : comm_(std::move(group), std::move(name)), executor_(comm_), post_(make_post(comm_)) {}

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
  nap_->end();
  if (worker_.joinable()) worker_.join();  // first, so that calls end in their order
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
  return of(comm_.shrink(), std::move(name));
}

bool Engine::is_calling_back() const { return calling_back == this; }

bool Engine::begin_if_idle() { return queued_ == 0 && !running_.exchange(true); }

// Whoever queues a request counts it before it looks whether something runs; here it is the other
// way round, so that one of the two sees the other.
void Engine::end() {
  running_ = false;
  if (queued_ == 0) return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Engine::run(const rc_call& raw) {
  check(!is_calling_back(), Code::kInvalidArgument,
        "a completion callback cannot wait for a call on its own communicator: start it "
        "(ringcoll_start)");
  if (!begin_if_idle()) {  // behind those that were submitted before, in the worker's hands
    auto request = std::make_shared<CallRequest>(raw, *this);
    start(request);
    request->wait(-1);
    return;
  }
  // The caller's own thread executes: to hand a call to the worker costs two switches of threads.
  struct Ender {
    Engine* engine;
    ~Ender() { engine->end(); }
  } ender{this};
  executor_.run(check_(raw));
}

void Engine::start(std::shared_ptr<CallRequest> request) {
  {
    std::lock_guard lock(mutex_);
    check(!stopping_, Code::kAborted, "the communicator is being closed");
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    gathering_ = newest_ && !newest_->awaited();
    newest_ = request;
    queue_.push_back(std::move(request));
    queued_++;
    // Who has waited for the one before waits for this one next; else there are more to come.
    if (!nap_->taken())
      changed_.notify_all();
    else if (!gathering_)
      nap_->end();
  }
  // Who executes may be asleep in a wait for a peer, with room for this one.
  executor_.look_again();
}

const Call* Engine::next() {
  if (queued_ == 0) return nullptr;
  std::lock_guard lock(mutex_);
  if (queue_.empty()) return nullptr;
  in_flight_.push_back(std::move(queue_.front()));
  queue_.pop_front();
  queued_--;
  return &in_flight_.back()->call_;
}

void Engine::ended(std::optional<Error> error, bool last) {
  auto request = std::move(in_flight_.front());
  in_flight_.pop_front();
  // First, for who hears of the last request's end may close the engine: nothing runs any more.
  if (last) running_ = false;
  // A callback may wait for what a sleeper does next.
  if (request->calls_back()) wake_sleepers();
  if (request->end(std::move(error))) {
    gathering_ = false;
    if (unwoken_.empty()) alarm_ = Clock::now() + kLatestAlarm;
    unwoken_.push_back(std::move(request));
  }
  look_up(last);
}

void Engine::look_up(bool blocks) {
  if (!unwoken_.empty() && (blocks || Clock::now() >= alarm_)) wake_sleepers();
}

void Engine::wake_sleepers() {
  for (auto& request : unwoken_) request->wake();
  unwoken_.clear();
}

void Engine::work() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the application's threads
  pthread_setname_np(pthread_self(), "ringcoll-worker");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return stopping_ || (!queue_.empty() && !running_.exchange(true)); });
    if (stopping_) return;
    lock.unlock();
    if (!executor_.run_all(*this)) running_ = false;  // close() took the queue
    if (gathering_) nap_->take(kNap, [this] { return queued_ > 0 || stopping_; });
    lock.lock();
  }
}

}  // namespace ringcoll

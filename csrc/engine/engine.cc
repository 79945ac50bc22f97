#include "engine/engine.h"

#include <utility>

#include "base/collectives.h"
#include "base/interruption.h"

namespace ringcoll {
namespace {

// The engine whose callback this thread is in. That engine may make no progress until the callback
// returns.
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
    : engine_(&engine), driver_(engine.driver()), done_(std::move(done)) {
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

bool CallRequest::may_wait() { return has_ended_here() || calling_back != engine_; }

bool CallRequest::wait(double limit_s) {
  if (!has_ended_here()) {
    if (limit_s == 0) return false;
    Driver::Limit limit;
    if (limit_s > 0) limit = Clock::now() + seconds(limit_s);
    Driver::Lock lock = driver_->enter();
    if (!driver_->wait(lock, *this, limit)) return false;
  }
  if (error_) throw *error_;
  return true;
}

Engine::Engine(Config config, std::string name, Exchange& exchange)
    : comm_(std::move(config), std::move(name), exchange),
      executor_(comm_),
      driver_(new Driver(*this, "ringcoll-worker")),
      post_(make_post(comm_)) {}
Engine::Engine(std::unique_ptr<Group> group, std::string name)
    : comm_(std::move(group), std::move(name)),
      executor_(comm_),
      driver_(new Driver(*this, "ringcoll-worker")),
      post_(make_post(comm_)) {}

std::unique_ptr<Engine> Engine::of(std::unique_ptr<Group> group, std::string name) {
  std::shared_ptr<Mesh> mesh = group->shared_mesh();
  GroupNumber number = group->number();
  try {
    return std::make_unique<Engine>(std::move(group), std::move(name));
  } catch (const std::exception& error) {  // any kind, such as std::bad_alloc
    mesh->lifelines().fail(number, as_error(error));
    throw;
  }
}

void Engine::close() {
  Driver::Lock lock = driver_->enter();
  if (driver_->is_closing()) return;
  std::deque<std::shared_ptr<CallRequest>> unbegun = std::exchange(queue_, {});
  pending_ -= unbegun.size();
  if (driver_->is_taken() || pending_ > 0)
    comm_.poison(
        Error(Code::kAborted,
              fmt::format("rank {} closed the communicator while a call was running", comm_.rank()),
              comm_.rank()));
  driver_->close(lock, [&] { end_all(lock, unbegun); });
  lock.unlock();
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

// Checks pending_ again with the role: another thread may have left calls in flight meanwhile.
bool Engine::begin_if_idle() {
  if (pending_ > 0 || !driver_->try_take()) return false;
  if (pending_ == 0) return true;
  driver_->release();
  return false;
}

void Engine::run_now(const rc_call& raw) {
  if (!begin_if_idle()) {  // after the calls that were submitted before
    auto request = std::make_shared<CallRequest>(raw, *this);
    submit(request, true);
    request->wait(-1);
    return;
  }
  struct Releaser {
    Driver& driver;
    ~Releaser() { driver.release(); }
  } releaser{*driver_};
  executor_.run(check_(raw));
}

void Engine::start(std::shared_ptr<CallRequest> request) { submit(std::move(request), false); }

// `awaited`: the caller waits for the call, so it needs no thread of the library. If that thread
// cannot be created, the group is poisoned: the other ranks make the same call, and learn why it
// fails.
void Engine::submit(std::shared_ptr<CallRequest> request, bool awaited) {
  {
    Driver::Lock lock = driver_->enter();
    check(!driver_->is_closing(), Code::kAborted, "the communicator is being closed");
    try {
      if (!awaited) driver_->make_thread();
    } catch (const std::exception& error) {
      comm_.poison(as_error(error));
      throw;
    }
    queue_.push_back(std::move(request));
    pending_++;
    if (!awaited) driver_->call_thread();
  }
  // The driving thread may be asleep in a wait for a peer, though this call could begin.
  executor_.look_again();
}

/// The submitted calls, for a thread that drives until its limit.
class Engine::Calls final : public CallSource {
 public:
  Calls(Engine& engine, Driver::Limit limit) : engine_(engine), limit_(limit) {}

  bool has_next() const override { return engine_.pending_ > engine_.in_flight_.size(); }
  const Call* next() override;
  void ended(std::optional<Error> error) override;
  bool leaves(bool connects) override { return left_ = left_ || is_to_leave(connects); }

 private:
  static constexpr int kPollsAClock = 16;

  bool is_to_leave(bool connects);

  Engine& engine_;
  const Driver::Limit limit_;
  int polls_ = 0;
  bool left_ = false;
};

const Call* Engine::Calls::next() {
  if (!has_next()) return nullptr;
  Driver::Lock lock = engine_.driver_->enter();
  auto& queue = engine_.queue_;
  if (queue.empty()) return nullptr;  // emptied by close()
  engine_.in_flight_.push_back(std::move(queue.front()));
  queue.pop_front();
  return &engine_.in_flight_.back()->call_;
}

void Engine::Calls::ended(std::optional<Error> error) {
  auto request = std::move(engine_.in_flight_.front());
  engine_.in_flight_.pop_front();
  engine_.pending_--;
  engine_.end(*request, std::move(error));
}

bool Engine::Calls::is_to_leave(bool connects) {
  Driver& driver = *engine_.driver_;
  if (connects) return !driver.may_block(limit_.has_value());
  if (driver.enough()) return true;
  if (!limit_ || (++polls_ % kPollsAClock != 0 && !engine_.comm_.channels().blocked()))
    return false;
  return Clock::now() >= *limit_;
}

void Engine::drive(Driver::Lock& lock, Driver::Awaited*, Driver::Limit limit) {
  lock.unlock();
  comm_.channels().wake_at(limit);
  Calls calls(*this, limit);
  while (pending_ > 0 && !calls.leaves(false)) executor_.run_all(calls);
  comm_.channels().wake_at({});
  lock.lock();
}

// For other threads the call ends after the callback has returned, since they may then free what
// the callback uses. The callback's own thread sees the end earlier (has_ended_here), so that it
// can ask for the result.
void Engine::end(CallRequest& request, std::optional<Error> error) {
  Driver::Lock lock = driver_->enter();
  request.error_ = std::move(error);
  if (request.done_) {
    request.teller_ = std::this_thread::get_id();
    lock.unlock();
    {
      CallbackScope scope(this);
      request.done_(request.error_);
    }
    request.done_ = {};
    lock.lock();
    request.teller_ = std::thread::id();
  }
  request.ended_ = true;
  driver_->wake_those_over();
}

// Called by close(), which has poisoned the communicator if calls are in flight.
void Engine::end_all(Driver::Lock& lock, const std::deque<std::shared_ptr<CallRequest>>& unbegun) {
  lock.unlock();
  Calls calls(*this, {});
  while (pending_ > 0) executor_.run_all(calls);
  for (const auto& request : unbegun)
    end(*request, Error(Code::kAborted, "the communicator was closed before this call began"));
  lock.lock();
}

}  // namespace ringcoll

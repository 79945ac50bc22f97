// The engine of one communicator: its executor, and the calls in flight. Calls begin and end in the
// order in which they were submitted, several in flight at once (coll/executor.h). A thread that
// waits for a call executes all calls up to that one. While no thread waits, the library's thread
// executes them (comm/driver.h).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "coll/call.h"
#include "coll/executor.h"
#include "comm/communicator.h"
#include "comm/driver.h"
#include "p2p/post.h"

namespace ringcoll {

class Engine;

/// A call or a message in flight, for threads that wait for it. Any thread.
class Request {
 public:
  /// Called when the request has ended, with its error if it failed. Does not throw.
  using Done = std::function<void(const std::optional<Error>&)>;

  virtual ~Request() = default;
  /// Returns once the request has ended and `done` has returned; inside `done` it returns at once.
  /// False if `limit_s` passes first (negative: no limit). Throws the error that the request has
  /// ended with, and nothing else. Precondition: may_wait(), or `limit_s` is 0.
  virtual bool wait(double limit_s) = 0;
  /// Whether a wait could end. False in a callback of the same engine, unless the request has
  /// ended.
  virtual bool may_wait() = 0;
};

/// While it lives, this thread is in a callback of `engine`.
class CallbackScope {
 public:
  explicit CallbackScope(const Engine* engine);
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  /// The engine whose callback this thread is in; null: none.
  static const Engine* current();

 private:
  const Engine* outer_;
};

class CallRequest final : public Request, private Driver::Awaited {
 public:
  /// Copies the call and its arrays. Its buffers stay borrowed until it has ended. Throws
  /// Error(kInvalidArgument) if the call is refused.
  CallRequest(const rc_call& raw, Engine& engine, Done done = {});

  bool wait(double limit_s) override;
  bool may_wait() override;

 private:
  friend class Engine;
  bool is_over() const override { return ended_; }
  // True in done_ already. Needs no lock, so that a polling thread disturbs no other.
  bool has_ended_here() const { return ended_ || teller_ == std::this_thread::get_id(); }

  std::vector<rc_buffer> buffers_;
  std::vector<int64_t> counts_, recv_counts_;
  Call call_;
  const Engine* engine_;  // may be gone; it is only compared
  std::shared_ptr<Driver> driver_;
  Done done_;
  // Changed with the driver's lock.
  std::atomic<std::thread::id> teller_;  // the thread in done_, which sees the end already
  std::atomic<bool> ended_ = false;
  std::optional<Error> error_;
};

class Engine final : private Driver::Work {
 public:
  /// As the constructors of Communicator.
  Engine(Config config, std::string name, Exchange& exchange);
  Engine(std::unique_ptr<Group> group, std::string name);
  /// Makes the engine of a group that has joined. If that fails, the other ranks of the group learn
  /// why.
  static std::unique_ptr<Engine> of(std::unique_ptr<Group> group, std::string name);
  ~Engine() override { close(); }
  /// Refuses new calls. Calls that have not begun end with kAborted, and those that run are aborted
  /// on all ranks. Returns when all calls and their callbacks have ended, and post() is closed. Not
  /// from a callback.
  void close();

  Communicator& comm() { return comm_; }
  /// Runs the call to its end. Throws Error; kInvalidArgument in a callback.
  void run(const rc_call& raw);
  /// Submits the call and returns at once. Throws Error if it cannot; then `done` is not called.
  void start(std::shared_ptr<CallRequest> request);
  /// Messages with tags, independent of the calls. Requests keep it alive after the engine.
  const std::shared_ptr<Post>& post() const { return post_; }
  /// Requests keep it alive after the engine.
  const std::shared_ptr<Driver>& driver() const { return driver_; }
  /// Makes a communicator of some of the ranks. Collective over all of them. Null for a rank in no
  /// group. Throws Error.
  std::unique_ptr<Engine> split(std::span<const Rank> ranks, std::string name);
  /// Makes a communicator of the surviving ranks. Collective over them. Throws Error;
  /// kInvalidArgument in a callback.
  std::unique_ptr<Engine> shrink(std::string name);
  /// Poisons the communicator with kAborted on all ranks, and ends a shrink() of this rank. Any
  /// thread.
  void abort(std::string_view reason);
  /// Calls `interrupted` of a blocking call, and returns whether the call is to end. The function
  /// counts as a callback.
  template <typename Asked>  // rc_call or rc_message
  bool asks(const Asked& asked) const {
    CallbackScope scope(this);
    return asked.interrupted(asked.interrupted_state) != 0;
  }
  /// Whether this thread is in a callback of this engine.
  bool is_calling_back() const;

 private:
  class Calls;

  // Driver::Work.
  bool has_work() const override { return pending_ > 0; }
  void drive(Driver::Lock& lock, Driver::Awaited* awaited, Driver::Limit limit) override;
  void wake() override { executor_.look_again(); }

  void run_now(const rc_call& raw);
  bool begin_if_idle();
  void submit(std::shared_ptr<CallRequest> request, bool awaited);
  void end(CallRequest& request, std::optional<Error> error);
  void end_all(Driver::Lock& lock, const std::deque<std::shared_ptr<CallRequest>>& unbegun);

  Communicator comm_;
  Executor executor_;
  CallCheck check_{comm_.rank(), comm_.size()};  // for the driving thread
  std::shared_ptr<Driver> driver_;
  // Submitted calls that have not ended. A blocking call that finds none takes no lock.
  std::atomic<size_t> pending_ = 0;
  std::deque<std::shared_ptr<CallRequest>> queue_;      // not begun; with the lock
  std::deque<std::shared_ptr<CallRequest>> in_flight_;  // begun; for the driving thread
  std::shared_ptr<Post> post_;
  std::mutex shrinking_;
  std::atomic<int> aborts_ = 0;
};

/// The JSON of ringcoll_comm_stats() and of ringcoll_info().
std::string stats_json(Engine& engine);
std::string info_json();

}  // namespace ringcoll

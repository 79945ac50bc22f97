// The engine: one communicator, its executor, and the calls in flight. Calls begin and end in the
// order in which they were submitted, several in flight at once (coll/executor.h). A thread that
// waits executes them up to the call that it waits for, else the library's thread does
// (comm/driver.h).
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

/// What is in flight and can be waited for: a call or a message. Any thread.
class Request {
 public:
  /// What is called when it has ended, with its error; does not throw.
  using Done = std::function<void(const std::optional<Error>&)>;

  virtual ~Request() = default;
  /// Returns once it has ended and `done` has returned; within `done` at once. False if `limit`
  /// passed first (negative: no limit). Throws the error it has ended with, and nothing else.
  /// Precondition: may_wait(), or a limit of 0.
  virtual bool wait(double limit_s) = 0;
  /// Whether a wait could end: not in a callback of the same engine, unless it has ended.
  virtual bool may_wait() = 0;
};

/// While it lives, this thread is in a callback of that engine's.
class CallbackScope {
 public:
  explicit CallbackScope(const Engine* engine);
  ~CallbackScope();
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;
  /// The engine in a callback of which this thread is; null: in none.
  static const Engine* current();

 private:
  const Engine* outer_;
};

class CallRequest final : public Request, private Driver::Awaited {
 public:
  /// Copies the call and its arrays; the buffers stay borrowed.
  CallRequest(const rc_call& raw, Engine& engine, Done done = {});

  bool wait(double limit_s) override;
  bool may_wait() override;

 private:
  friend class Engine;
  bool is_over() const override { return ended_; }
  // Without the lock, too, so that who polls is in nobody's way.
  bool has_ended_here() const { return ended_ || teller_ == std::this_thread::get_id(); }

  std::vector<rc_buffer> buffers_;
  std::vector<int64_t> counts_, recv_counts_;
  Call call_;
  const Engine* engine_;  // which may be gone, to compare it
  std::shared_ptr<Driver> driver_;
  Done done_;
  // Changed with the driver's lock.
  std::atomic<std::thread::id> teller_;  // who is in done_, for whom the call has ended already
  std::atomic<bool> ended_ = false;
  std::optional<Error> error_;
};

class Engine final : private Driver::Work {
 public:
  /// As a Communicator.
  Engine(Config config, std::string name, Exchange& exchange);
  Engine(std::unique_ptr<Group> group, std::string name);
  /// Of a group that has joined. Should it throw, the others, who are in it, learn why.
  static std::unique_ptr<Engine> of(std::unique_ptr<Group> group, std::string name);
  ~Engine() override { close(); }
  /// No new calls; those that have not begun end with kAborted, one that runs is aborted on all
  /// ranks. Returns when all have, and their callbacks. Not from a callback.
  void close();

  Communicator& comm() { return comm_; }
  /// Throws Error; kInvalidArgument in a callback.
  void run(const rc_call& raw);
  void start(std::shared_ptr<CallRequest> request);
  /// Messages with tags, beside the calls. Outlives the engine in those who wait for one.
  const std::shared_ptr<Post>& post() const { return post_; }
  /// Outlives the engine in its requests.
  const std::shared_ptr<Driver>& driver() const { return driver_; }
  /// A communicator of some of its ranks. Collective over all of them; null for a rank in no group.
  /// Throws Error.
  std::unique_ptr<Engine> split(std::span<const Rank> ranks, std::string name);
  /// A communicator of those of its ranks who are left: collective over them. Throws Error;
  /// kInvalidArgument in a callback.
  std::unique_ptr<Engine> shrink(std::string name);
  /// Poisons with kAborted on all ranks, and ends a shrink() that runs here. Any thread.
  void abort(std::string_view reason);
  /// Asks the caller of a blocking call, which is in a callback meanwhile, whether it is to end.
  template <typename Asked>  // rc_call, rc_message
  bool asks(const Asked& asked) const {
    CallbackScope scope(this);
    return asked.interrupted(asked.interrupted_state) != 0;
  }
  /// Whether this thread is in a callback of one of its requests.
  bool is_calling_back() const;

 private:
  class Calls;

  // Of the driver.
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
  CallCheck check_{comm_.rank(), comm_.size()};  // of who drives
  std::shared_ptr<Driver> driver_;
  // Calls that were submitted and have not ended. A blocking call that finds none takes no lock.
  std::atomic<size_t> pending_ = 0;
  std::deque<std::shared_ptr<CallRequest>> queue_;      // those that have not begun; with the lock
  std::deque<std::shared_ptr<CallRequest>> in_flight_;  // the others; of who drives
  std::shared_ptr<Post> post_;
  std::mutex shrinking_;
  std::atomic<int> aborts_ = 0;
};

/// What ringcoll_comm_stats() and ringcoll_info() return.
std::string stats_json(Engine& engine);
std::string info_json();

}  // namespace ringcoll

// The engine: one communicator, its executor, and a worker for calls that nobody waits for. Calls
// begin and end in the order in which they were submitted, several in flight at once
// (coll/executor.h). Who waits executes them: a blocking call, or those up to the one that is
// waited for.
#pragma once

#include <atomic>
#include <condition_variable>
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
#include "engine/habit.h"
#include "engine/nap.h"
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

/// How a request finds its engine, which may have ended before it.
struct EngineLink {
  explicit EngineLink(Engine* own) : engine(own) {}

  Nap nap;  // the worker's, between calls
  Habit habit;
  std::mutex mutex;
  Engine* engine;  // null: it is being closed
};

class CallRequest final : public Request {
 public:
  /// Copies the call and its arrays; the buffers stay borrowed.
  CallRequest(const rc_call& raw, Engine& engine, Done done = {});

  bool wait(double limit_s) override;
  bool may_wait() override;
  /// Whether somebody has.
  bool awaited() const { return awaited_; }

 private:
  friend class Engine;
  bool calls_back() const { return static_cast<bool>(tell_); }  // for who executes
  /// True if somebody sleeps until wake().
  bool end(std::optional<Error> error);
  void wake();
  void sleep(std::unique_lock<std::mutex>& lock);
  bool has_ended_here() const { return done_ || teller_ == std::this_thread::get_id(); }

  std::vector<rc_buffer> buffers_;
  std::vector<int64_t> counts_, recv_counts_;
  Call call_;
  const Engine* engine_;  // which may be gone, to compare it
  std::shared_ptr<EngineLink> link_;
  Done tell_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::thread::id teller_;  // who is in tell_, for whom the call has ended already
  bool done_ = false;
  int sleepers_ = 0;
  std::atomic<bool> awaited_ = false;
  std::optional<Error> error_;
};

class Engine {
 public:
  /// As a Communicator.
  Engine(Config config, std::string name, Exchange& exchange);
  Engine(std::unique_ptr<Group> group, std::string name);
  /// Of a group that has joined. Should it throw, the others, who are in it, learn why.
  static std::unique_ptr<Engine> of(std::unique_ptr<Group> group, std::string name);
  ~Engine() { close(); }
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
  const std::shared_ptr<EngineLink>& link() const { return link_; }
  /// Executes calls until this one has ended, if nobody does: to hand them to the worker and to be
  /// woken by it costs two switches of threads. Else sees to it that somebody will. With the
  /// link's mutex, which it unlocks.
  void help(const CallRequest& awaited, std::unique_lock<std::mutex> link);
  /// Somebody waits who does not help: the worker's nap is over.
  void hurry() { link_->nap.end(); }
  /// Calls that were started and ended by a thread that waited. Any thread.
  uint64_t helped() const { return helped_; }
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
  class Turn;

  void run_now(const rc_call& raw);
  void make_worker();
  void work();
  bool has_work() const { return left_ || (queued_ > 0 && !running_); }
  bool is_over() const { return stopping_ && helpers_ == 0; }
  bool take_up();
  bool may_be_helped() const;
  bool will_be_helped() const;
  void nap_while_helped(std::unique_lock<std::mutex>* lock);
  bool begin_if_idle();
  void end();

  Communicator comm_;
  // Whether a call's steps take so long, for a CPU or for a network, that others should go on.
  const bool waits_long_ = comm_.channels().yields() || !comm_.group().one_domain();
  Executor executor_;
  CallCheck check_{comm_.rank(), comm_.size()};  // of who executes
  std::mutex mutex_;
  std::condition_variable changed_;
  // Calls are being executed: whoever sets it does that, the worker, a caller, or who waits. A
  // caller that finds nothing running and nothing queued takes no lock.
  std::atomic<bool> running_ = false;
  // But whoever did has gone, with calls in flight, with which the worker goes on.
  std::atomic<bool> left_ = false;
  std::atomic<size_t> queued_ = 0;     // the length of queue_
  std::atomic<size_t> callbacks_ = 0;  // of calls that have not ended: these are the worker's
  std::atomic<bool> stopping_ = false;
  std::deque<std::shared_ptr<CallRequest>> queue_;
  std::deque<std::shared_ptr<CallRequest>> in_flight_;  // of who executes
  int helpers_ = 0;                                     // that are in help()
  std::atomic<uint64_t> helped_ = 0;                    // calls that they have ended
  std::shared_ptr<CallRequest> newest_;                 // that was submitted
  // It was before anybody waited for the one before it, nor has since for one that ended.
  std::atomic<bool> gathering_ = false;
  std::shared_ptr<EngineLink> link_;
  std::thread worker_;  // started by the first start()
  std::shared_ptr<Post> post_;
  std::mutex shrinking_;
  std::atomic<int> aborts_ = 0;
};

/// What ringcoll_comm_stats() and ringcoll_info() return.
std::string stats_json(Engine& engine);
std::string info_json();

}  // namespace ringcoll

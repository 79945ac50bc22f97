// The engine: one communicator, its executor, and a worker for calls that are not waited for. Calls
// run one at a time, in the order in which they were submitted; a blocking call on an idle engine
// runs in the caller's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coll/call.h"
#include "coll/executor.h"
#include "comm/communicator.h"

namespace ringcoll {

/// A call in flight. Any thread.
class Request {
 public:
  /// Copies the call and its arrays; the buffers stay borrowed.
  Request(const rc_call& raw, Rank rank, Rank size);

  /// False if `limit` passed first (negative: no limit). Throws the call's error once it has ended.
  bool wait(double limit_s);

 private:
  friend class Engine;
  void end(std::optional<Error> error);

  std::vector<rc_buffer> buffers_;
  std::vector<int64_t> counts_, recv_counts_;
  Call call_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::optional<Error> error_;
};

class Engine {
 public:
  /// As a Communicator.
  Engine(Config config, std::string name, Exchange& exchange);
  Engine(std::unique_ptr<Group> group, std::string name);
  /// Calls that have not begun end with kAborted; one that runs is aborted on all ranks.
  ~Engine();

  Communicator& comm() { return comm_; }
  /// Throws Error.
  void run(const rc_call& raw);
  std::shared_ptr<Request> start(const rc_call& raw);

 private:
  void work();
  bool begin_if_idle();
  void end();

  Communicator comm_;
  Executor executor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // A call is being executed, by the worker or by a caller: whoever sets it. A caller that finds
  // nothing running and nothing queued takes no lock.
  std::atomic<bool> running_ = false;
  std::atomic<size_t> queued_ = 0;  // the length of queue_
  bool stopping_ = false;
  std::deque<std::shared_ptr<Request>> queue_;
  std::thread worker_;  // started by the first start()
};

/// Makes a communicator of some ranks of another. Collective over all ranks of `parent`; null for a
/// rank in no group.
std::unique_ptr<Engine> split(Engine& parent, std::span<const Rank> group, std::string name);

/// What ringcoll_comm_stats(), ringcoll_info() and ringcoll_simulate() return.
std::string stats_json(Communicator& comm);
std::string info_json();
/// Throws Error(kInvalidArgument) that names the field of the request.
std::string simulate_json(std::string_view request);

}  // namespace ringcoll

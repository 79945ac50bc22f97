#include "python/attended.h"

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "python/errors.h"
#include "python/interpreter.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(100);

class Task : public std::enable_shared_from_this<Task> {
 public:
  explicit Task(std::function<rc_status(rc_comm**)> body) : body_(std::move(body)) {}

  /// Starts `body` on a thread. If no thread can be created, runs it here: the library then
  /// reports the failure, to the other ranks too.
  void begin() {
    try {
      std::thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::system_error&) {
      run();
    }
  }
  void run() {
    rc_comm* comm = nullptr;
    rc_status status = body_(&comm);
    body_ = {};  // releases what it holds, such as a communicator
    std::unique_lock lock(mutex_);
    if (status != RC_OK) outcome_ = Failure::last(status);
    comm_ = comm;
    ended_ = true;
    if (abandoned_) ringcoll_comm_destroy(comm_);
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kSlice, [this] { return ended_; });
  }
  void give_up() {
    std::unique_lock lock(mutex_);
    abandoned_ = true;
    if (ended_) ringcoll_comm_destroy(comm_);
  }
  // Both are valid once wait() has returned true.
  rc_comm* comm() const { return comm_; }
  const Failure& outcome() const { return outcome_; }

 private:
  std::function<rc_status(rc_comm**)> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool abandoned_ = false;
  rc_comm* comm_ = nullptr;
  Failure outcome_;
};

void attend(Task& task, const std::function<void()>& cancel) {
  std::optional<py::error_already_set> raised;
  for (bool waits = true; waits;) {
    {
      Released released;
      if (raised) cancel();  // again, since an earlier cancel may have come too early
      waits = !task.wait();
    }
    if (!waits || PyErr_CheckSignals() == 0) continue;
    waits = cancel && !raised;
    raised.emplace();
  }
  if (!raised) return;
  {
    Released released;
    task.give_up();
  }
  throw py::error_already_set(*raised);
}

}  // namespace

rc_comm* attended(std::function<rc_status(rc_comm**)> body, const std::function<void()>& cancel) {
  auto task = std::make_shared<Task>(std::move(body));
  const bool attends = is_main_thread() && !CalledBack::now();
  {
    Released released;
    if (attends)
      task->begin();
    else
      task->run();
  }
  if (attends) attend(*task, cancel);
  const Failure& outcome = task->outcome();
  if (outcome.status == RC_OK) return task->comm();
  // Ctrl-C goes to all ranks of the job. So it is the cause, and a lost peer is a consequence.
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  raise(outcome);
}

}  // namespace ringcoll::python

// Python objects for the handles of the C ABI: Comm and Request.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "python/call.h"
#include "python/completion.h"
#include "python/errors.h"
#include "python/interpreter.h"
#include "python/message.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// A call or a message in flight. Any thread that has the GIL may use it.
class Request {
 public:
  /// Keeps `borrowed`, the tensors, until the call has ended, and releases it with the GIL.
  /// `element_bytes` is that of a receive's buffer; 0 for others.
  Request(rc_request* request, std::shared_ptr<void> borrowed,
          std::shared_ptr<Completion> completion, int64_t element_bytes = 0);
  /// Starts `asked` (a Call, Message or Copies) on `handle` by a function of the C ABI. Releases
  /// the GIL, and raises what the function reports.
  template <typename Handle, typename Asked, typename Begin>
  static std::unique_ptr<Request> start(Handle* handle, std::shared_ptr<Asked> asked, Begin begin,
                                        int64_t element_bytes = 0);
  /// Never waits. If the call has not ended, the library may still write to the buffers. Then a
  /// thread of the library frees the request and the tensors when the call ends.
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  /// Returns true once the call has ended, false if `timeout_s` passes first (negative: no limit).
  /// Raises the call's error, each time. Releases the GIL. Signal handlers run at least every
  /// kSliceSeconds, and what they raise ends the wait.
  bool wait(double timeout_s);
  /// True if the call has ended, with or without an error. Does not block.
  bool done();
  /// (source, tag, bytes, elements) of a receive. Precondition: wait() has returned true.
  pybind11::tuple received() const;
  /// Registers a function that a thread of the library calls when the call has ended. Returns false
  /// if the call has ended already: then the caller calls the function.
  bool add_done_callback(const pybind11::object& function);

 private:
  static constexpr double kSliceSeconds = 0.1;

  bool poll(double timeout_s);

  std::shared_ptr<rc_request> request_;  // null once ended; waiting threads hold copies
  std::shared_ptr<void> borrowed_;
  std::shared_ptr<Completion> completion_;
  const int64_t element_bytes_;
  Failure outcome_;  // with the message that a receive has matched
};

template <typename Handle, typename Asked, typename Begin>
std::unique_ptr<Request> Request::start(Handle* handle, std::shared_ptr<Asked> asked, Begin begin,
                                        int64_t element_bytes) {
  auto completion = std::make_shared<Completion>();
  auto state = std::make_unique<std::shared_ptr<Completion>>(completion);
  auto* done_state = state.release();  // Completion::done() owns it once the call has started
  asked->set_done(&Completion::done, done_state);
  rc_request* request = nullptr;
  Failure outcome;
  {
    Released released;
    outcome.status = begin(handle, &asked->get(), &request);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) {
    state.reset(done_state);
    raise(outcome);
  }
  return std::make_unique<Request>(request, std::move(asked), std::move(completion), element_bytes);
}

/// A communicator. Any thread that has the GIL may use it. close() must not run beside other calls.
class Comm {
 public:
  /// Collective over all ranks of the store. Releases the GIL. Ctrl-C interrupts it.
  Comm(int rank, int size, std::string store, std::string name, double timeout_s);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool closed() const { return !comm_; }

  // Blocking calls release the GIL. In the main thread, Python's signal handlers run meanwhile, and
  // an exception of a handler ends the call.

  /// Returns when the call has ended.
  void run(const CallArguments& arguments);
  std::unique_ptr<Request> start(const CallArguments& arguments);
  /// Send or receive a message, and return when that has ended. recv() returns (source, tag, bytes,
  /// elements).
  void send(const MessageArguments& arguments);
  pybind11::tuple recv(const MessageArguments& arguments);
  std::unique_ptr<Request> isend(const MessageArguments& arguments);
  std::unique_ptr<Request> irecv(const MessageArguments& arguments);
  /// Returns null on a rank that passes no ranks.
  std::unique_ptr<Comm> split(const std::vector<int32_t>& ranks, const std::string& name);
  std::unique_ptr<Comm> shrink(const std::string& name);
  /// The JSON of ringcoll_comm_stats().
  std::string stats();
  void abort(const std::string& reason);
  /// Destroys the communicator. Does nothing the second time. Raises InvalidArgument while another
  /// thread is in a call.
  void close();

  /// The handle. A call holds a copy, so that nobody destroys the communicator during the call.
  /// Raises InvalidArgument if it is closed.
  std::shared_ptr<rc_comm> open() const;

 private:
  explicit Comm(std::shared_ptr<rc_comm> comm);
  void run_message(Message& message, rc_message_info* info);
  /// Wraps the communicator that `make` makes from this one; null if it makes none. Releases the
  /// GIL. If a signal handler ends it, the communicator is aborted, and `doing` tells the other
  /// ranks why.
  std::unique_ptr<Comm> derive(std::function<rc_status(rc_comm*, rc_comm**)> make,
                               const char* doing);

  std::shared_ptr<rc_comm> comm_;  // null once closed
  int rank_;
  int size_;
};

/// The JSON of ringcoll_info().
std::string info();
/// The JSON of ringcoll_simulate(). Releases the GIL.
std::string simulate(const std::string& request);

}  // namespace ringcoll::python

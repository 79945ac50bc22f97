// Comm and Request: the handles of the C ABI as Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "python/call.h"
#include "python/completion.h"
#include "python/errors.h"
#include "python/message.h"
#include "ringcoll/ringcoll.h"

namespace ringcoll::python {

/// A call or a message in flight. Keeps what it borrows until that has ended.
class Request {
 public:
  /// `borrowed` is destroyed with the GIL. `element_bytes`: of the buffer of a receive, else 0.
  Request(rc_request* request, std::shared_ptr<void> borrowed,
          std::shared_ptr<Completion> completion, int64_t element_bytes = 0);
  /// Never waits: of a call that has not ended the library's thread frees the request, and what is
  /// borrowed, once it has, since the library may write to the buffers until then.
  ~Request();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  /// True once the call has ended; false if `timeout_s` passed first (negative: no limit). Raises
  /// the call's error, each time. Releases the GIL; Ctrl-C interrupts it within kSlice.
  bool wait(double timeout_s);
  /// True if the call has ended, well or not. Does not block.
  bool done();
  /// (source, tag, bytes, elements) of a receive that has ended well.
  pybind11::tuple received() const;
  /// Has the library's thread call the function once the call has ended. False if it has already:
  /// call it yourself.
  bool add_done_callback(const pybind11::object& function);

 private:
  static constexpr double kSliceSeconds = 0.1;

  bool poll(double timeout_s);

  std::shared_ptr<rc_request> request_;  // null once ended; threads that wait hold it too
  std::shared_ptr<void> borrowed_;
  std::shared_ptr<Completion> completion_;
  const int64_t element_bytes_;
  Failure outcome_;  // and what was received
};

/// A communicator. Any thread may use it, except that close() must be alone.
class Comm {
 public:
  /// Collective over all ranks of the store. Releases the GIL; Ctrl-C interrupts it.
  Comm(int rank, int size, std::string store, std::string name, double timeout_s);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool closed() const { return !comm_; }

  // Blocking calls attend to signals in the main thread: what a handler raises ends them.

  /// Runs a call to its end, without the GIL.
  void run(const CallArguments& arguments);
  std::unique_ptr<Request> start(const CallArguments& arguments);
  /// Messages with tags: to their end, without the GIL. recv() returns (source, tag, bytes,
  /// elements).
  void send(const MessageArguments& arguments);
  pybind11::tuple recv(const MessageArguments& arguments);
  std::unique_ptr<Request> isend(const MessageArguments& arguments);
  std::unique_ptr<Request> irecv(const MessageArguments& arguments);
  /// Null on a rank that passes no ranks.
  std::unique_ptr<Comm> split(const std::vector<int32_t>& ranks, const std::string& name);
  std::unique_ptr<Comm> shrink(const std::string& name);
  /// JSON.
  std::string stats();
  void abort(const std::string& reason);
  /// Says goodbye and frees. Twice is allowed; refused while another thread is in a call.
  void close();

 private:
  explicit Comm(std::shared_ptr<rc_comm> comm);
  /// The handle, held for the length of a call so that it is not freed under it.
  std::shared_ptr<rc_comm> open() const;
  template <typename Asked, typename Begin>
  std::unique_ptr<Request> begin(std::shared_ptr<Asked> asked, int64_t element_bytes,
                                 Begin&& begin);
  void run_message(Message& message, rc_message_info* info);
  /// Of what `make` makes of this one; null if that is nothing. Releases the GIL. `doing`: for the
  /// other ranks, if a handler of signals ends it.
  std::unique_ptr<Comm> derive(std::function<rc_status(rc_comm*, rc_comm**)> make,
                               const char* doing);

  std::shared_ptr<rc_comm> comm_;  // null once closed
  int rank_;
  int size_;
};

/// JSON of ringcoll_info.
std::string info();
/// JSON of ringcoll_simulate. Releases the GIL.
std::string simulate(const std::string& request);

}  // namespace ringcoll::python

#include "python/comm.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "python/attended.h"
#include "python/interpreter.h"
#include "python/library.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

std::shared_ptr<rc_comm> own(rc_comm* comm) {
  return {comm, [](rc_comm* handle) {
            if (!PyGILState_Check()) return ringcoll_comm_destroy(handle);
            Released released;
            ringcoll_comm_destroy(handle);
          }};
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

rc_comm* create(int rank, int size, std::string store, std::string name, double timeout_s) {
  return attended(
      [rank, size, store = std::move(store), name = std::move(name), timeout_s](rc_comm** comm) {
        rc_comm_options options{};
        options.struct_size = sizeof options;
        options.rank = rank;
        options.size = size;
        options.store = store.c_str();
        options.name = name.c_str();
        options.timeout_s = timeout_s;
        return ringcoll_comm_create(&options, comm);
      });
}

py::tuple tuple_of(const rc_message_info& info, int64_t element_bytes) {
  return py::make_tuple(info.source, info.tag, info.bytes, info.bytes / element_bytes);
}

}  // namespace

Request::Request(rc_request* request, std::shared_ptr<void> borrowed,
                 std::shared_ptr<Completion> completion, int64_t element_bytes)
    : request_(request, ringcoll_request_free),
      borrowed_(std::move(borrowed)),
      completion_(std::move(completion)),
      element_bytes_(element_bytes) {}

// poll() may raise, so the destructor does not use it. In a forked child, ringcoll_wait() reports
// every inherited request as ended.
Request::~Request() {
  if (!request_) return;
  int ended = 0;
  {
    Released released;
    ringcoll_wait(request_.get(), 0, &ended);
  }
  if (!ended) completion_->adopt(request_, borrowed_);
}

bool Request::poll(double timeout_s) {
  auto request = request_;
  if (!request) return true;
  int done = 0;
  Failure outcome;
  {
    Released released;
    outcome.status = ringcoll_wait(request.get(), timeout_s, &done);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
    if (element_bytes_ > 0 && done) ringcoll_received(request.get(), &outcome.info);
  }
  if (!done) {  // still in flight, even if the wait was refused: it keeps its tensors
    if (outcome.status != RC_OK) raise(outcome);
    return false;
  }
  if (request_) {  // else another waiting thread has done this
    outcome_ = std::move(outcome);
    request_.reset();
    borrowed_.reset();
  }
  return true;
}

py::tuple Request::received() const { return tuple_of(outcome_.info, element_bytes_); }

bool Request::wait(double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (;;) {
    double passed = std::chrono::duration<double>(Clock::now() - begin).count();
    double left = timeout_s < 0 ? kSliceSeconds : std::max(0.0, timeout_s - passed);
    if (poll(std::min(left, kSliceSeconds))) break;
    check_signals();
    if (timeout_s >= 0 && passed >= timeout_s) return false;
  }
  if (outcome_.status != RC_OK) raise(outcome_);
  return true;
}

bool Request::done() { return poll(0); }

bool Request::add_done_callback(const py::object& function) {
  if (completion_->add(function)) return true;
  poll(-1);  // short: the call has ended, or its `done` is about to return
  return false;
}

Comm::Comm(int rank, int size, std::string store, std::string name, double timeout_s)
    : comm_(own(create(rank, size, std::move(store), std::move(name), timeout_s))),
      rank_(rank),
      size_(size) {}

Comm::Comm(std::shared_ptr<rc_comm> comm)
    : comm_(std::move(comm)),
      rank_(ringcoll_comm_rank(comm_.get())),
      size_(ringcoll_comm_size(comm_.get())) {}

std::shared_ptr<rc_comm> Comm::open() const {
  if (!comm_) raise_invalid("the communicator is closed");
  return comm_;
}

void Comm::run(const CallArguments& arguments) {
  auto comm = open();
  Call call(arguments, rank_, size_);
  Signals signals;
  signals.attend(call);
  Failure outcome;
  {
    Released released;
    outcome.status = ringcoll_run(comm.get(), &call.get());
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  signals.raise_if_any();
  if (outcome.status == RC_OK) return;
  check_signals();  // Ctrl-C goes to all ranks: it is the cause, a lost peer a consequence
  raise(outcome);
}

std::unique_ptr<Request> Comm::start(const CallArguments& arguments) {
  auto comm = open();
  return Request::start(comm.get(), std::make_shared<Call>(arguments, rank_, size_),
                        ringcoll_start);
}

// ---- Messages with tags ----

std::unique_ptr<Request> Comm::isend(const MessageArguments& arguments) {
  auto comm = open();
  return Request::start(comm.get(), std::make_shared<Message>(arguments, false), ringcoll_isend);
}

std::unique_ptr<Request> Comm::irecv(const MessageArguments& arguments) {
  auto comm = open();
  auto message = std::make_shared<Message>(arguments, true);
  int64_t element_bytes = message->element_bytes();
  return Request::start(comm.get(), std::move(message), ringcoll_irecv, element_bytes);
}

void Comm::run_message(Message& message, rc_message_info* info) {
  auto comm = open();
  Signals signals;
  signals.attend(message);
  Failure outcome;
  {
    Released released;
    outcome.status = info ? ringcoll_recv(comm.get(), &message.get(), info)
                          : ringcoll_send(comm.get(), &message.get());
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  signals.raise_if_any();
  if (outcome.status == RC_OK) return;
  check_signals();  // as in run()
  if (info) outcome.info = *info;
  raise(outcome);
}

void Comm::send(const MessageArguments& arguments) {
  open();
  Message message(arguments, false);
  run_message(message, nullptr);
}

py::tuple Comm::recv(const MessageArguments& arguments) {
  open();
  Message message(arguments, true);
  rc_message_info info{sizeof info, -1, -1, -1};
  run_message(message, &info);
  return tuple_of(info, message.element_bytes());
}

std::unique_ptr<Comm> Comm::derive(std::function<rc_status(rc_comm*, rc_comm**)> make,
                                   const char* doing) {
  auto comm = open();
  rc_comm* made = attended(
      [comm, make = std::move(make)](rc_comm** result) { return make(comm.get(), result); },
      [&] { ringcoll_comm_abort(comm.get(), doing); });
  if (!made) return nullptr;
  return std::unique_ptr<Comm>(new Comm(own(made)));
}

std::unique_ptr<Comm> Comm::split(const std::vector<int32_t>& ranks, const std::string& name) {
  return derive(
      [ranks, name](rc_comm* comm, rc_comm** sub) {
        return ringcoll_comm_split(comm, ranks.data(), static_cast<int32_t>(ranks.size()),
                                   name.c_str(), sub);
      },
      "interrupted in its split");
}

std::unique_ptr<Comm> Comm::shrink(const std::string& name) {
  return derive([name](rc_comm* comm,
                       rc_comm** rest) { return ringcoll_comm_shrink(comm, name.c_str(), rest); },
                "interrupted in its shrink");
}

std::string Comm::stats() {
  auto comm = open();
  char* json = nullptr;
  Failure outcome;
  {
    Released released;
    outcome.status = ringcoll_comm_stats(comm.get(), &json);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
  return take_json(json);
}

void Comm::abort(const std::string& reason) {
  auto comm = open();
  Released released;
  ringcoll_comm_abort(comm.get(), reason.c_str());
}

void Comm::close() {
  if (comm_.use_count() > 1)
    raise_invalid(
        "the communicator is in use by a call of another thread: wait for it, or abort()");
  if (!comm_) return;
  attended([held = std::exchange(comm_, nullptr)](rc_comm**) mutable {
    held.reset();
    return RC_OK;
  });
}

std::string info() {
  char* json = nullptr;
  rc_status status = ringcoll_info(&json);
  if (status != RC_OK) raise(Failure::last(status));
  return take_json(json);
}

std::string simulate(const std::string& request) {
  char* json = nullptr;
  Failure outcome;
  {
    Released released;
    outcome.status = ringcoll_simulate(request.c_str(), &json);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
  return take_json(json);
}

}  // namespace ringcoll::python

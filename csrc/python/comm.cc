#include "python/comm.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace py = pybind11;

namespace ringcoll::python {
namespace {

std::shared_ptr<rc_comm> own(rc_comm* comm) {
  return {comm, [](rc_comm* handle) {
            if (!PyGILState_Check()) return ringcoll_comm_destroy(handle);
            py::gil_scoped_release release;
            ringcoll_comm_destroy(handle);
          }};
}

/// The creation of a communicator in a thread of its own, so that the one that asked for it can
/// attend to signals. Who gives up leaves the result to the thread.
class Creation : public std::enable_shared_from_this<Creation> {
 public:
  Creation(int rank, int size, std::string store, std::string name, double timeout_s)
      : store_(std::move(store)), name_(std::move(name)) {
    options_.struct_size = sizeof(options_);
    options_.rank = rank;
    options_.size = size;
    options_.store = store_.c_str();
    options_.name = name_.c_str();
    options_.timeout_s = timeout_s;
  }

  /// Without a thread it has ended afterwards: so the library says what it cannot make, to the
  /// other ranks too.
  void begin() {
    try {
      std::thread([self = shared_from_this()] { self->create(); }).detach();
    } catch (const std::system_error&) {
      create();
    }
  }

  bool wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return ended_; });
  }

  void give_up() {
    std::unique_lock lock(mutex_);
    abandoned_ = true;
    if (ended_) ringcoll_comm_destroy(comm_);
  }

  rc_comm* comm() const { return comm_; }
  const Failure& outcome() const { return outcome_; }

 private:
  void create() {
    rc_comm* comm = nullptr;
    rc_status status = ringcoll_comm_create(&options_, &comm);
    std::unique_lock lock(mutex_);
    if (status != RC_OK) outcome_ = Failure::last(status);
    comm_ = comm;
    ended_ = true;
    if (abandoned_) ringcoll_comm_destroy(comm_);
    changed_.notify_all();
  }

  std::string store_, name_;
  rc_comm_options options_ = {};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  bool abandoned_ = false;
  rc_comm* comm_ = nullptr;
  Failure outcome_;
};

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

rc_comm* create(int rank, int size, std::string store, std::string name, double timeout_s) {
  auto creation =
      std::make_shared<Creation>(rank, size, std::move(store), std::move(name), timeout_s);
  {
    py::gil_scoped_release release;
    creation->begin();
  }
  for (bool ended = false; !ended;) {
    {
      py::gil_scoped_release release;
      ended = creation->wait(std::chrono::milliseconds(100));
    }
    if (ended || PyErr_CheckSignals() == 0) continue;
    {
      py::gil_scoped_release release;
      creation->give_up();
    }
    throw py::error_already_set();
  }
  if (creation->outcome().status != RC_OK) raise(creation->outcome());
  return creation->comm();
}

py::tuple tuple_of(const rc_message_info& info, int64_t element_bytes) {
  return py::make_tuple(info.source, info.tag, info.bytes, info.bytes / element_bytes);
}

std::string take_json(char* json) {
  std::string text(json);
  ringcoll_free(json);
  return text;
}

}  // namespace

Request::Request(rc_request* request, std::shared_ptr<void> borrowed,
                 std::shared_ptr<Completion> completion, int64_t element_bytes)
    : request_(request, ringcoll_request_free),
      borrowed_(std::move(borrowed)),
      completion_(std::move(completion)),
      element_bytes_(element_bytes) {}

Request::~Request() {
  if (!request_ || poll(0)) return;
  if (Completion::is_in_done() && completion_->adopt(request_, borrowed_)) return;
  py::gil_scoped_release release;
  request_.reset();
}

bool Request::poll(double timeout_s) {
  auto request = request_;
  if (!request) return true;
  int done = 0;
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = ringcoll_wait(request.get(), timeout_s, &done);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
    if (element_bytes_ > 0 && done) ringcoll_received(request.get(), &outcome.info);
  }
  if (!done) {  // or refused: the request goes on, and its tensors stay
    if (outcome.status != RC_OK) raise(outcome);
    return false;
  }
  if (request_) {  // else another thread that waited was first
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

void Request::add_done_callback(const py::object& function) {
  if (completion_->add(function)) return;
  poll(-1);  // it has ended, or is about to return from rc_call.done
  function();
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
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = ringcoll_run(comm.get(), &call.get());
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status == RC_OK) return;
  check_signals();  // Ctrl-C reached all ranks of the job, and is the cause rather than a lost peer
  raise(outcome);
}

template <typename Asked, typename Begin>
std::unique_ptr<Request> Comm::begin(std::shared_ptr<Asked> asked, int64_t element_bytes,
                                     Begin&& begin) {
  auto comm = open();
  auto completion = std::make_shared<Completion>();
  auto state = std::make_unique<std::shared_ptr<Completion>>(completion);
  auto* done_state = state.release();  // done()'s, once it has started
  asked->set_done(&Completion::done, done_state);
  rc_request* request = nullptr;
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = begin(comm.get(), &asked->get(), &request);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) {
    state.reset(done_state);
    raise(outcome);
  }
  return std::make_unique<Request>(request, std::move(asked), std::move(completion), element_bytes);
}

std::unique_ptr<Request> Comm::start(const CallArguments& arguments) {
  open();
  return begin(std::make_shared<Call>(arguments, rank_, size_), 0, ringcoll_start);
}

// ---- Messages with tags ----

std::unique_ptr<Request> Comm::isend(const MessageArguments& arguments) {
  open();
  return begin(std::make_shared<Message>(arguments, false), 0, ringcoll_isend);
}

std::unique_ptr<Request> Comm::irecv(const MessageArguments& arguments) {
  open();
  auto message = std::make_shared<Message>(arguments, true);
  int64_t element_bytes = message->element_bytes();
  return begin(std::move(message), element_bytes, ringcoll_irecv);
}

void Comm::run_message(const Message& message, rc_message_info* info) {
  auto comm = open();
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = info ? ringcoll_recv(comm.get(), &message.get(), info)
                          : ringcoll_send(comm.get(), &message.get());
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status == RC_OK) return;
  check_signals();  // as in run()
  if (info) outcome.info = *info;
  raise(outcome);
}

void Comm::send(const MessageArguments& arguments) {
  open();
  run_message(Message(arguments, false), nullptr);
}

py::tuple Comm::recv(const MessageArguments& arguments) {
  open();
  Message message(arguments, true);
  rc_message_info info{sizeof info, -1, -1, -1};
  run_message(message, &info);
  return tuple_of(info, message.element_bytes());
}

std::unique_ptr<Comm> Comm::derive(const std::function<rc_status(rc_comm*, rc_comm**)>& make) {
  auto comm = open();
  rc_comm* made = nullptr;
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = make(comm.get(), &made);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
  if (!made) return nullptr;
  return std::unique_ptr<Comm>(new Comm(own(made)));
}

std::unique_ptr<Comm> Comm::split(const std::vector<int32_t>& ranks, const std::string& name) {
  return derive([&](rc_comm* comm, rc_comm** sub) {
    return ringcoll_comm_split(comm, ranks.data(), static_cast<int32_t>(ranks.size()), name.c_str(),
                               sub);
  });
}

std::unique_ptr<Comm> Comm::shrink(const std::string& name) {
  return derive([&](rc_comm* comm, rc_comm** rest) {
    return ringcoll_comm_shrink(comm, name.c_str(), rest);
  });
}

std::string Comm::stats() {
  auto comm = open();
  char* json = nullptr;
  Failure outcome;
  {
    py::gil_scoped_release release;
    outcome.status = ringcoll_comm_stats(comm.get(), &json);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
  return take_json(json);
}

void Comm::abort(const std::string& reason) {
  auto comm = open();
  py::gil_scoped_release release;
  ringcoll_comm_abort(comm.get(), reason.c_str());
}

void Comm::close() {
  if (comm_.use_count() > 1)
    raise_invalid(
        "the communicator is in use by a call of another thread: wait for it, or abort()");
  comm_.reset();
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
    py::gil_scoped_release release;
    outcome.status = ringcoll_simulate(request.c_str(), &json);
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
  return take_json(json);
}

}  // namespace ringcoll::python

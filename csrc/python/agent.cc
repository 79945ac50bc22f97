#include "python/agent.h"

#include <fmt/core.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "python/interpreter.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

using Clock = std::chrono::steady_clock;
using Guard = py::call_guard<Inside>;

constexpr double kSliceSeconds = 0.1;
constexpr double kCloseSeconds = 5;
constexpr size_t kLongestHandle = 1024;

/// Runs `body` without the GIL, and raises its error.
template <typename Body>
void call(Body&& body) {
  Failure outcome;
  {
    Released released;
    outcome.status = body();
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  if (outcome.status != RC_OK) raise(outcome);
}

void check_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::string take_text(char* text) {
  std::string copy(text);
  ringcoll_free(text);
  return copy;
}

std::shared_ptr<rc_agent> own(rc_agent* agent) {
  return {agent, [](rc_agent* handle) {
            if (!PyGILState_Check()) return ringcoll_agent_close(handle);
            Released released;
            ringcoll_agent_close(handle);
          }};
}

rc_agent_options options_of(double timeout_s) {
  return {.struct_size = sizeof(rc_agent_options), .timeout_s = timeout_s};
}

rc_source source_of(const py::handle& given) {
  auto tuple = py::cast<py::tuple>(given);
  const auto& remote = py::cast<const Remote&>(tuple[0]);
  return {remote.get(), py::cast<uint64_t>(tuple[1]), py::cast<int64_t>(tuple[2])};
}

void add_to(Copies& copies, const py::handle& given) {
  auto tuple = py::cast<py::tuple>(given);
  py::object tensor = tuple[0];
  if (tuple.size() == 4) {
    const auto& remote = py::cast<const Remote&>(tuple[1]);
    return copies.add_write(tensor, {remote.get(), py::cast<uint64_t>(tuple[2]), 0}, tuple[3],
                            tuple);
  }
  std::vector<rc_source> sources;
  for (const py::handle& source : tuple[1]) sources.push_back(source_of(source));
  copies.add_read(tensor, std::move(sources), tuple);
}

}  // namespace

// ---- Remote and Region ----

Remote::Remote(const py::bytes& handle) {
  std::string_view bytes = handle;
  rc_remote* remote = nullptr;
  rc_status status = ringcoll_attach(bytes.data(), bytes.size(), &remote);
  if (status != RC_OK) raise(Failure::last(status));
  remote_ = {remote, ringcoll_detach};
}

Region::Region(std::shared_ptr<rc_agent> agent, const py::object& tensor, bool writable)
    : agent_(std::move(agent)),
      tensor_(std::make_unique<Tensor>(tensor, writable ? Access::kWrite : Access::kRead,
                                       "register: the tensor", Elements::kAny)),
      bytes_(tensor_->bytes()) {
  call([&] {
    return ringcoll_register(agent_.get(), tensor_->data(), static_cast<size_t>(bytes_), writable,
                             &region_);
  });
}

Region::~Region() {
  if (!region_) return;
  rc_status status;
  {
    Released released;
    status = ringcoll_region_close(region_, 0);
  }
  if (status != RC_TIMEOUT) return;
  // Rare: the tensor must outlive what a stopped process does to it, so it is never released.
  tensor_.release();  // NOLINT: leaked on purpose
  try {
    std::thread([agent = agent_, region = region_] {
      while (ringcoll_region_close(region, kCloseSeconds) == RC_TIMEOUT) {
      }
    }).detach();
  } catch (const std::system_error&) {
    // No thread can be started: the region stays open, and its memory stays what it was.
  }
}

rc_region* Region::open() const {
  if (!region_) raise_invalid("the region is closed");
  return region_;
}

py::bytes Region::handle() {
  char handle[kLongestHandle];
  size_t bytes = sizeof handle;
  rc_status status = ringcoll_region_handle(open(), handle, &bytes);
  if (status != RC_OK) raise(Failure::last(status));
  return {handle, bytes};
}

uint64_t Region::notice(double timeout_s) {
  auto end = Clock::now() + std::chrono::duration<double>(std::min(timeout_s, 1e9));
  for (;;) {
    uint64_t value = 0;
    rc_region* region = open();
    double left = std::chrono::duration<double>(end - Clock::now()).count();
    Failure outcome;
    {
      Released released;
      outcome.status = ringcoll_region_notice(region, std::clamp(left, 0.0, kSliceSeconds), &value);
      if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
    }
    if (outcome.status == RC_OK) return value;
    if (outcome.status != RC_TIMEOUT || left <= 0) raise(outcome);
    check_signals();
  }
}

void Region::close(double timeout_s) {
  if (!region_) return;
  call([&] { return ringcoll_region_close(region_, timeout_s); });
  region_ = nullptr;
  tensor_.reset();
  agent_.reset();  // which may end now
}

// ---- Copies ----

Copies::Copies(double timeout_s) {
  all_.struct_size = sizeof all_;
  all_.timeout_s = timeout_s;
}

void Copies::add(const py::object& tensor, Access access, std::vector<rc_source> sources,
                 py::object keep) {
  tensors_.push_back(std::make_unique<Tensor>(
      tensor, access, access == Access::kRead ? "write: the tensor" : "read: the output",
      Elements::kAny));
  sources_.push_back(std::move(sources));
  kept_.push_back(std::move(keep));
  copies_.push_back({.local = tensors_.back()->data(),
                     .bytes = static_cast<uint64_t>(tensors_.back()->bytes()),
                     .sources = sources_.back().data(),
                     .source_count = static_cast<int64_t>(sources_.back().size())});
}

void Copies::add_read(const py::object& out, std::vector<rc_source> sources, py::object keep) {
  add(out, Access::kWrite, std::move(sources), std::move(keep));
}

void Copies::add_write(const py::object& tensor, rc_source target, py::object notice,
                       py::object keep) {
  add(tensor, Access::kRead, {target}, std::move(keep));
  copies_.back().writes = 1;
  if (notice.is_none()) return;
  copies_.back().has_notice = 1;
  copies_.back().notice = py::cast<uint64_t>(notice);
}

const rc_copies& Copies::get() {
  all_.copies = copies_.data();
  all_.count = static_cast<int64_t>(copies_.size());
  return all_;
}

void Copies::set_done(rc_done_fn done, void* state) {
  all_.done = done;
  all_.done_state = state;
}

void Copies::set_interrupted(rc_interrupted_fn interrupted, void* state) {
  all_.interrupted = interrupted;
  all_.interrupted_state = state;
}

// ---- Agent ----

Agent::Agent(double timeout_s) {
  rc_agent* agent = nullptr;
  auto options = options_of(timeout_s);
  call([&] { return ringcoll_agent_open(&options, &agent); });
  agent_ = own(agent);
  id_ = ringcoll_agent_id(agent);
}

Agent::Agent(Comm& comm, double timeout_s) {
  rc_agent* agent = nullptr;
  auto options = options_of(timeout_s);
  auto handle = comm.open();
  call([&] { return ringcoll_comm_agent(handle.get(), &options, &agent); });
  agent_ = own(agent);
  id_ = ringcoll_agent_id(agent);
}

std::shared_ptr<rc_agent> Agent::open_agent() const {
  if (!agent_) raise_invalid("the agent is closed");
  return agent_;
}

std::string Agent::admit(const std::string& name, const std::string& key, uint16_t port) {
  auto agent = open_agent();
  char* json = nullptr;
  call([&] { return ringcoll_agent_admit(agent.get(), name.c_str(), key.c_str(), port, &json); });
  return take_text(json);
}

std::string Agent::stats() {
  auto agent = open_agent();
  char* json = nullptr;
  call([&] { return ringcoll_agent_stats(agent.get(), &json); });
  return take_text(json);
}

std::unique_ptr<Region> Agent::open(const py::object& tensor, bool writable) {
  return std::make_unique<Region>(open_agent(), tensor, writable);
}

void Agent::run(Copies& copies) {
  auto agent = open_agent();
  Signals signals;
  signals.attend(copies);
  Failure outcome;
  {
    Released released;
    outcome.status = ringcoll_copy(agent.get(), &copies.get());
    if (outcome.status != RC_OK) outcome = Failure::last(outcome.status);
  }
  signals.raise_if_any();
  if (outcome.status != RC_OK) raise(outcome);
}

void Agent::read(const Remote& remote, const py::object& out, uint64_t offset, double timeout_s) {
  Copies copies(timeout_s);
  copies.add_read(out, {{remote.get(), offset, 0}}, {});
  run(copies);
}

void Agent::write(const Remote& remote, const py::object& tensor, uint64_t offset,
                  py::object notice, double timeout_s) {
  Copies copies(timeout_s);
  copies.add_write(tensor, {remote.get(), offset, 0}, std::move(notice), {});
  run(copies);
}

void Agent::copy(const py::list& given, double timeout_s) {
  Copies copies(timeout_s);
  for (const py::handle& each : given) add_to(copies, each);
  run(copies);
}

std::unique_ptr<Request> Agent::start(const py::list& given, double timeout_s) {
  auto agent = open_agent();
  auto copies = std::make_shared<Copies>(timeout_s);
  for (const py::handle& each : given) add_to(*copies, each);
  return Request::start(agent.get(), std::move(copies), ringcoll_start_copies);
}

uint64_t Agent::dial(const std::string& address, double timeout_s) {
  auto agent = open_agent();
  uint64_t connection = 0;
  call([&] { return ringcoll_agent_dial(agent.get(), address.c_str(), timeout_s, &connection); });
  return connection;
}

void Agent::send(uint64_t connection, const py::object& data) {
  auto agent = open_agent();
  Tensor bytes(data, Access::kRead, "send: the message", Elements::kAny);
  call([&] {
    return ringcoll_agent_send(agent.get(), connection, bytes.data(),
                               static_cast<size_t>(bytes.bytes()));
  });
}

py::object Agent::receive(double timeout_s) {
  auto end = Clock::now() + std::chrono::duration<double>(std::min(timeout_s, 1e9));
  for (;;) {
    if (closing_) raise({.status = RC_ABORTED, .message = "the agent is closed"});
    auto agent = open_agent();
    rc_event event{.struct_size = sizeof event};
    double left = std::chrono::duration<double>(end - Clock::now()).count();
    call([&] {
      return ringcoll_agent_receive(agent.get(), std::clamp(left, 0.0, kSliceSeconds), &event);
    });
    if (event.kind != RC_EVENT_NONE) {
      py::bytes data(static_cast<const char*>(event.data), event.bytes);
      ringcoll_free(event.data);
      return py::make_tuple(static_cast<int>(event.kind), event.connection, data);
    }
    if (left <= 0) return py::none();
    check_signals();
  }
}

void Agent::hang_up(uint64_t connection) {
  auto agent = open_agent();
  Released released;
  ringcoll_agent_hang_up(agent.get(), connection);
}

void Agent::close() {
  closing_ = true;
  agent_.reset();
}

// ---- Allocation ----

Allocation::Allocation(size_t bytes) : bytes_(bytes) {
  call([&] { return ringcoll_allocate(std::max<size_t>(bytes, 1), &memory_); });
}

Allocation::~Allocation() { ringcoll_release(memory_); }

py::buffer_info Allocation::buffer() const {
  return {memory_, 1, py::format_descriptor<uint8_t>::format(), static_cast<py::ssize_t>(bytes_)};
}

void bind_agent(py::module_& module) {
  py::class_<Remote>(module, "Remote", "A region of any process.")
      .def(py::init<const py::bytes&>(), py::arg("handle"))
      .def_property_readonly("bytes", &Remote::bytes);
  py::class_<Region>(module, "Region", "Memory of this process that others may use.")
      .def_property_readonly("bytes", &Region::bytes)
      .def("handle", &Region::handle, Guard())
      .def("notice", &Region::notice, py::arg("timeout"), Guard())
      .def("close", &Region::close, py::arg("timeout") = kCloseSeconds, Guard());
  py::class_<Agent>(module, "Agent", "An agent of the library.")
      .def(py::init<double>(), py::arg("timeout") = 0.0, Guard())
      .def(py::init<Comm&, double>(), py::arg("comm"), py::arg("timeout") = 0.0, Guard())
      .def_property_readonly("id", &Agent::id)
      .def_property_readonly("closed", &Agent::closed)
      .def("admit", &Agent::admit, py::arg("name"), py::arg("key"), py::arg("port") = 0, Guard())
      .def("stats", &Agent::stats, Guard())
      .def("register", &Agent::open, py::arg("tensor"), py::arg("writable") = false, Guard())
      .def("read", &Agent::read, py::arg("remote"), py::arg("out"), py::arg("offset") = 0,
           py::arg("timeout") = 0.0, Guard())
      .def("write", &Agent::write, py::arg("remote"), py::arg("tensor"), py::arg("offset") = 0,
           py::arg("notice") = py::none(), py::arg("timeout") = 0.0, Guard())
      .def("copy", &Agent::copy, py::arg("copies"), py::arg("timeout") = 0.0, Guard())
      .def("start", &Agent::start, py::arg("copies"), py::arg("timeout") = 0.0, Guard())
      .def("dial", &Agent::dial, py::arg("address"), py::arg("timeout"), Guard())
      .def("send", &Agent::send, py::arg("connection"), py::arg("data"), Guard())
      .def("receive", &Agent::receive, py::arg("timeout"), Guard())
      .def("hang_up", &Agent::hang_up, py::arg("connection"), Guard())
      .def("close", &Agent::close, Guard());
  py::class_<Allocation>(module, "Allocation", py::buffer_protocol(), "Memory cheap to share.")
      .def(py::init<size_t>(), py::arg("bytes"), Guard())
      .def_buffer([](Allocation& self) { return self.buffer(); });
}

}  // namespace ringcoll::python

#include "python/tables.h"

#include <fmt/core.h>
#include <pybind11/stl.h>

#include <string_view>
#include <utility>

#include "python/interpreter.h"
#include "python/library.h"

namespace py = pybind11;

namespace ringcoll::python {
namespace {

using Guard = py::call_guard<Inside>;

constexpr size_t kLongestOffer = 1024;

rc_table_call_kind kind_of(const std::string& what) {
  if (what == "push" || what == "pull" || what == "push_pull") return RC_TABLE_ROWS;
  if (what == "tick") return RC_TABLE_TICK;
  if (what == "join") return RC_TABLE_JOIN;
  if (what == "set_rule") return RC_TABLE_RULE;
  if (what == "assign") return RC_TABLE_ASSIGN;
  raise_invalid(fmt::format("a table has no call \"{}\"", what));
}

rc_dtype dtype_named(const std::string& name) {
  for (int dtype = 0; dtype < RC_DTYPE_COUNT; dtype++)
    if (name == name_of(static_cast<rc_dtype>(dtype))) return static_cast<rc_dtype>(dtype);
  raise_invalid(fmt::format("\"{}\" is no type of values", name));
}

/// The bytes that `write(place, &length)` writes.
template <typename Write>
py::bytes written(Write&& write) {
  char bytes[kLongestOffer];
  size_t length = sizeof bytes;
  without_gil([&] { return write(bytes, &length); });
  return {bytes, length};
}

/// The JSON that `write(&json)` writes.
template <typename Write>
std::string json_of(Write&& write) {
  char* json = nullptr;
  without_gil([&] { return write(&json); });
  return take_json(json);
}

int64_t count_of(const std::vector<int64_t>& numbers) {
  return static_cast<int64_t>(numbers.size());
}

/// A handle that is closed without the GIL by its last owner.
template <typename Handle>
std::shared_ptr<Handle> own(Handle* handle, void (*close)(Handle*)) {
  return {handle, [close](Handle* closed) {
            if (!PyGILState_Check()) return close(closed);
            const Released released;
            close(closed);
          }};
}

std::string table_describe(const std::string& table, int64_t shards) {
  return json_of([&](char** json) { return ringcoll_table_describe(table.c_str(), shards, json); });
}

}  // namespace

// ---- TableCall

TableCall::TableCall(std::string uid, const std::string& what, rc_dtype dtype,
                     const py::object& ids, const py::object& values, double weight, int64_t clock,
                     const py::object& out, bool is_attended)
    : uid_(std::move(uid)) {
  call_ = {.struct_size = sizeof call_,
           .uid = uid_.c_str(),
           .kind = kind_of(what),
           .pushes = what.starts_with("push"),
           .pulls = what.ends_with("pull"),
           .dtype = dtype,
           .weight = weight,
           .has_clock = clock >= 0,
           .clock = clock,
           .attended = is_attended};
  if (!ids.is_none()) {
    ids_ = std::make_unique<Tensor>(ids, Access::kRead, "table: the ids");
    if (ids_->dtype() != RC_INT64) raise_invalid("table: the ids are not int64");
    call_.ids = static_cast<const int64_t*>(ids_->data());
    call_.id_count = ids_->count();
  }
  if (!values.is_none()) {
    values_ = std::make_unique<Tensor>(values, Access::kRead, "table: the values", Elements::kAny);
    call_.values = values_->data();
    call_.value_bytes = static_cast<size_t>(values_->bytes());
  }
  if (out.is_none()) return;
  out_ = std::make_unique<Tensor>(out, Access::kWrite, "table: the output", Elements::kAny);
  if (call_.kind == RC_TABLE_JOIN) {
    if (out_->dtype() != RC_INT64 || out_->count() != 1)
      raise_invalid("table: a clock goes to one int64");
    call_.current = static_cast<int64_t*>(out_->data());
    return;
  }
  call_.out = out_->data();
  call_.out_bytes = static_cast<size_t>(out_->bytes());
}

void TableCall::set_done(rc_done_fn done, void* state) {
  call_.done = done;
  call_.done_state = state;
}

// ---- TableServer

TableServer::TableServer(const Agent& agent) {
  const auto handle = agent.handle();
  rc_table_server* server = nullptr;
  without_gil([&] { return ringcoll_table_server_open(handle.get(), &server); });
  server_ = own(server, ringcoll_table_server_close);
}

std::shared_ptr<rc_table_server> TableServer::open() const {
  if (!server_) raise_invalid("the server of tables is closed");
  return server_;
}

py::bytes TableServer::accept(int64_t client, const py::bytes& offer) {
  const auto server = open();
  const std::string_view offered = offer;
  return written([&](void* place, size_t* length) {
    return ringcoll_table_server_accept(server.get(), client, offered.data(), offered.size(), place,
                                        length);
  });
}

void TableServer::drop(int64_t client) {
  without_gil(
      [server = open(), client] { return ringcoll_table_server_drop(server.get(), client); });
}

void TableServer::leave(int64_t client) {
  without_gil(
      [server = open(), client] { return ringcoll_table_server_leave(server.get(), client); });
}

void TableServer::host(const std::string& uid, const std::string& table, uint32_t shard,
                       int64_t shards, const std::vector<int64_t>& workers) {
  const auto server = open();
  without_gil([&] {
    return ringcoll_table_server_host(server.get(), uid.c_str(), table.c_str(), shard, shards,
                                      workers.data(), count_of(workers));
  });
}

void TableServer::host_saved(const std::string& uid, const std::string& table, uint32_t shard,
                             int64_t shards, const std::vector<int64_t>& workers,
                             const py::object& saved, const std::string& json) {
  const auto server = open();
  const Tensor bytes(saved, Access::kRead, "host_saved: what was saved", Elements::kAny);
  without_gil([&] {
    return ringcoll_table_server_host_saved(server.get(), uid.c_str(), table.c_str(), shard, shards,
                                            workers.data(), count_of(workers), bytes.data(),
                                            static_cast<size_t>(bytes.bytes()), json.c_str());
  });
}

py::tuple TableServer::save(const std::string& uid, uint32_t shard) {
  const auto server = open();
  void* memory = nullptr;
  size_t bytes = 0;
  const std::string json = json_of([&](char** told) {
    return ringcoll_table_server_save(server.get(), uid.c_str(), shard, &memory, &bytes, told);
  });
  return py::make_tuple(std::make_unique<Allocation>(memory, bytes), json);
}

void TableServer::unhost(const std::string& uid, uint32_t shard) {
  const auto server = open();
  without_gil([&] { return ringcoll_table_server_unhost(server.get(), uid.c_str(), shard); });
}

void TableServer::lead(const std::string& uid, uint32_t shard, int64_t epoch,
                       const std::vector<int64_t>& backups) {
  const auto server = open();
  without_gil([&] {
    return ringcoll_table_server_lead(server.get(), uid.c_str(), shard, epoch, backups.data(),
                                      count_of(backups));
  });
}

void TableServer::follow(const std::string& uid, uint32_t shard, int64_t epoch) {
  const auto server = open();
  without_gil(
      [&] { return ringcoll_table_server_follow(server.get(), uid.c_str(), shard, epoch); });
}

void TableServer::serve_until(double monotonic_s) {
  without_gil([server = open(), monotonic_s] {
    return ringcoll_table_server_serve_until(server.get(), monotonic_s);
  });
}

py::bytes TableServer::offer(int64_t other) {
  const auto server = open();
  return written([&](void* place, size_t* length) {
    return ringcoll_table_server_offer(server.get(), other, place, length);
  });
}

void TableServer::complete(int64_t other, const py::bytes& answer) {
  const auto server = open();
  const std::string_view answered = answer;
  without_gil([&] {
    return ringcoll_table_server_complete(server.get(), other, answered.data(), answered.size());
  });
}

void TableServer::part(int64_t other) {
  without_gil([server = open(), other] { return ringcoll_table_server_part(server.get(), other); });
}

std::string TableServer::events() {
  const auto server = open();
  return json_of([&](char** json) { return ringcoll_table_server_events(server.get(), json); });
}

std::string TableServer::stats() {
  const auto server = open();
  return json_of([&](char** json) { return ringcoll_table_server_stats(server.get(), json); });
}

void TableServer::close() { server_.reset(); }

// ---- TableClient

TableClient::TableClient(const Agent& agent, int64_t id) {
  const auto handle = agent.handle();
  rc_table_client* client = nullptr;
  without_gil([&] { return ringcoll_table_client_open(handle.get(), id, &client); });
  client_ = own(client, ringcoll_table_client_close);
}

std::shared_ptr<rc_table_client> TableClient::open() const {
  if (!client_) raise_invalid("the client of tables is closed");
  return client_;
}

py::bytes TableClient::offer(int64_t server) {
  const auto client = open();
  return written([&](void* place, size_t* length) {
    return ringcoll_table_client_offer(client.get(), server, place, length);
  });
}

void TableClient::complete(int64_t server, const py::bytes& answer) {
  const auto client = open();
  const std::string_view answered = answer;
  without_gil([&] {
    return ringcoll_table_client_complete(client.get(), server, answered.data(), answered.size());
  });
}

void TableClient::part(int64_t server) {
  without_gil(
      [client = open(), server] { return ringcoll_table_client_part(client.get(), server); });
}

void TableClient::table(const std::string& uid, const std::string& table, int64_t shards) {
  const auto client = open();
  without_gil([&] {
    return ringcoll_table_client_table(client.get(), uid.c_str(), table.c_str(), shards);
  });
}

void TableClient::route(const std::string& uid, const std::vector<int64_t>& servers) {
  const auto client = open();
  without_gil([&] {
    return ringcoll_table_client_route(client.get(), uid.c_str(), servers.data(),
                                       count_of(servers));
  });
}

std::string TableClient::astray() {
  const auto client = open();
  return json_of([&](char** json) { return ringcoll_table_client_astray(client.get(), json); });
}

std::unique_ptr<Request> TableClient::start(const std::string& uid, const std::string& what,
                                            const py::object& ids, const py::object& values,
                                            const std::string& dtype, double weight, int64_t clock,
                                            const py::object& out, bool is_attended) {
  const auto client = open();
  auto call = std::make_shared<TableCall>(uid, what, dtype_named(dtype), ids, values, weight, clock,
                                          out, is_attended);
  return Request::start(client.get(), std::move(call), ringcoll_table_start);
}

void TableClient::close() { client_.reset(); }

void bind_tables(py::module_& module) {
  module.def("table_describe", &table_describe, py::arg("table"), py::arg("shards"), Guard());
  py::class_<TableServer>(module, "TableServer", "Shards of tables, and a thread that serves them.")
      .def(py::init<const Agent&>(), py::arg("agent"), Guard())
      .def("accept", &TableServer::accept, py::arg("client"), py::arg("offer"), Guard())
      .def("drop", &TableServer::drop, py::arg("client"), Guard())
      .def("leave", &TableServer::leave, py::arg("client"), Guard())
      .def("host", &TableServer::host, py::arg("uid"), py::arg("table"), py::arg("shard"),
           py::arg("shards"), py::arg("workers"), Guard())
      .def("host_saved", &TableServer::host_saved, py::arg("uid"), py::arg("table"),
           py::arg("shard"), py::arg("shards"), py::arg("workers"), py::arg("saved"),
           py::arg("json"), Guard())
      .def("save", &TableServer::save, py::arg("uid"), py::arg("shard"), Guard())
      .def("unhost", &TableServer::unhost, py::arg("uid"), py::arg("shard"), Guard())
      .def("lead", &TableServer::lead, py::arg("uid"), py::arg("shard"), py::arg("epoch"),
           py::arg("backups"), Guard())
      .def("follow", &TableServer::follow, py::arg("uid"), py::arg("shard"), py::arg("epoch"),
           Guard())
      .def("serve_until", &TableServer::serve_until, py::arg("monotonic_s"), Guard())
      .def("offer", &TableServer::offer, py::arg("server"), Guard())
      .def("complete", &TableServer::complete, py::arg("server"), py::arg("answer"), Guard())
      .def("part", &TableServer::part, py::arg("server"), Guard())
      .def("events", &TableServer::events, Guard())
      .def("stats", &TableServer::stats, Guard())
      .def("close", &TableServer::close, Guard());
  py::class_<TableClient>(module, "TableClient", "Calls on tables.")
      .def(py::init<const Agent&, int64_t>(), py::arg("agent"), py::arg("client"), Guard())
      .def("offer", &TableClient::offer, py::arg("server"), Guard())
      .def("complete", &TableClient::complete, py::arg("server"), py::arg("answer"), Guard())
      .def("part", &TableClient::part, py::arg("server"), Guard())
      .def("open", &TableClient::table, py::arg("uid"), py::arg("table"), py::arg("shards"),
           Guard())
      .def("route", &TableClient::route, py::arg("uid"), py::arg("servers"), Guard())
      .def("astray", &TableClient::astray, Guard())
      .def("start", &TableClient::start, py::arg("uid"), py::arg("what"), py::arg("ids"),
           py::arg("values"), py::arg("dtype"), py::arg("weight"), py::arg("clock"), py::arg("out"),
           py::arg("attended") = false, Guard())
      .def("close", &TableClient::close, Guard());
}

}  // namespace ringcoll::python

// Python objects for the handles of ringcoll/tables.h: TableServer, TableClient.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "python/agent.h"
#include "python/comm.h"
#include "python/tensor.h"
#include "ringcoll/tables.h"

namespace ringcoll::python {

/// A call with its tensors, as the C ABI wants it. Making and destroying it needs the GIL.
class TableCall {
 public:
  /// `what`: "push", "pull", "push_pull", "assign", "tick", "join" or "set_rule". `dtype`: of the
  /// values.
  TableCall(std::string uid, const std::string& what, rc_dtype dtype, const pybind11::object& ids,
            const pybind11::object& values, double weight, int64_t clock,
            const pybind11::object& out, bool is_attended);
  const rc_table_call& get() const { return call_; }
  void set_done(rc_done_fn done, void* state);

 private:
  const std::string uid_;
  std::unique_ptr<Tensor> ids_, values_, out_;
  rc_table_call call_ = {};
};

/// Any thread that has the GIL. Blocking calls release it.
class TableServer {
 public:
  explicit TableServer(const Agent& agent);

  pybind11::bytes accept(int64_t client, const pybind11::bytes& offer);
  void drop(int64_t client);
  void leave(int64_t client);
  void host(const std::string& uid, const std::string& table, uint32_t shard, int64_t shards,
            const std::vector<int64_t>& workers);
  void host_saved(const std::string& uid, const std::string& table, uint32_t shard, int64_t shards,
                  const std::vector<int64_t>& workers, const pybind11::object& saved,
                  const std::string& json);
  /// (memory, JSON)
  pybind11::tuple save(const std::string& uid, uint32_t shard);
  void unhost(const std::string& uid, uint32_t shard);
  void lead(const std::string& uid, uint32_t shard, int64_t epoch,
            const std::vector<int64_t>& backups);
  void follow(const std::string& uid, uint32_t shard, int64_t epoch);
  void serve_until(double monotonic_s);
  pybind11::bytes offer(int64_t other);
  void complete(int64_t other, const pybind11::bytes& answer);
  void part(int64_t other);
  std::string events();
  std::string stats();
  void close();

 private:
  std::shared_ptr<rc_table_server> open() const;

  std::shared_ptr<rc_table_server> server_;  // null once closed
};

/// Any thread that has the GIL. Blocking calls release it.
class TableClient {
 public:
  TableClient(const Agent& agent, int64_t id);

  pybind11::bytes offer(int64_t server);
  void complete(int64_t server, const pybind11::bytes& answer);
  void part(int64_t server);
  void table(const std::string& uid, const std::string& table, int64_t shards);
  void route(const std::string& uid, const std::vector<int64_t>& servers);
  std::string astray();
  std::unique_ptr<Request> start(const std::string& uid, const std::string& what,
                                 const pybind11::object& ids, const pybind11::object& values,
                                 const std::string& dtype, double weight, int64_t clock,
                                 const pybind11::object& out, bool is_attended);
  void close();

 private:
  std::shared_ptr<rc_table_client> open() const;

  std::shared_ptr<rc_table_client> client_;  // null once closed
};

void bind_tables(pybind11::module_& module);

}  // namespace ringcoll::python

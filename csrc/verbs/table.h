// libibverbs as a table of function pointers, filled by dlopen. So one build of ringcoll also loads
// where there is no RDMA, and a test can put a software device in the table.
//
// Private to verbs/: this header includes <infiniband/verbs.h>, so that the compiler checks each
// signature against the real one. The layer above uses handles.h, queue_pair.h, discovery.h and
// events.h, which only declare the structs of verbs. ci/check_layers.py refuses an include of this
// header from elsewhere, directly or by another header.
#pragma once

#include <infiniband/verbs.h>

#include <cstring>

#include "verbs/fork.h"

namespace ringcoll::verbs {

/// The functions of libibverbs that ringcoll calls. Posting, polling and arming are no symbols of
/// the library: the header's inline functions go through ibv_context::ops.
struct Table {
  decltype(&::ibv_get_device_list) get_device_list = nullptr;
  decltype(&::ibv_free_device_list) free_device_list = nullptr;
  decltype(&::ibv_get_device_name) get_device_name = nullptr;
  decltype(&::ibv_open_device) open_device = nullptr;
  decltype(&::ibv_close_device) close_device = nullptr;
  decltype(&::ibv_query_device) query_device = nullptr;
  // Takes the struct of 2005. query_port() below reads ports, and knows both structs.
  decltype(&::ibv_query_port) query_port_compat = nullptr;
  decltype(&::ibv_query_gid) query_gid = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  // The function, not the header's macro of the same name.
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_qp) create_qp = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_query_qp) query_qp = nullptr;
  decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_fork_init) fork_init = nullptr;
  // Null in libraries older than the version named.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2 = nullptr;                // 1.8, rdma-core 28
  decltype(&::_ibv_query_gid_table) query_gid_table = nullptr;         // 1.11, rdma-core 32
  decltype(&::ibv_is_fork_initialized) is_fork_initialized = nullptr;  // 1.13, rdma-core 35
};

/// A struct of verbs with all bytes zero, as its functions want them. Some structs hold
/// enumerations that have no zero of their own.
template <typename Struct>
Struct zeroed() {
  Struct made;
  std::memset(static_cast<void*>(&made), 0, sizeof made);
  return made;
}

/// The library's table, or the override in force. The first call loads the library and makes it
/// safe for fork(). Throws Error(kTransport) with the package to install; a later call tries again.
/// Any thread.
const Table& table();

/// Loads the library `file`. Throws as table() does.
Table load_table(const char* file);

/// While it lives, table() returns `table`, which outlives it. For tests. If there are several, the
/// last one made counts, and ends first.
class ScopedTable {
 public:
  explicit ScopedTable(const Table& table);
  ~ScopedTable();
  ScopedTable(const ScopedTable&) = delete;
  ScopedTable& operator=(const ScopedTable&) = delete;

 private:
  const Table* before_;
};

/// Asks the library to be safe for fork(), as fork.h says. table() calls it before anything else.
ForkSupport prepare_for_fork(const Table& table);

/// ibv_query_port, whose inline wrapper in the header would need the library at link time. Returns
/// zero or the errno.
int query_port(const Table& table, ibv_context* context, int port, ibv_port_attr* attributes);

}  // namespace ringcoll::verbs

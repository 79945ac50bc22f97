#include "verbs/table.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "base/order.h"

namespace ringcoll::verbs {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";
// The structs of verbs.h are those of this version; 1.0 has the same names with other structs.
constexpr const char* kVersion = "IBVERBS_1.1";

std::atomic<const Table*> override_in_force{nullptr};
std::atomic<ForkSupport> fork_found{ForkSupport::kDisabled};

/// Sets `entry` to the function `name` of `version`; false if the library has none.
template <typename Function>
bool find(void* library, const char* name, const char* version, Function* entry) {
  *entry = reinterpret_cast<Function>(::dlvsym(library, name, version));
  return *entry != nullptr;
}

template <typename Function>
void need(void* library, const char* name, Function* entry, const char* version = kVersion) {
  check(find(library, name, version, entry), Code::kTransport,
        "loading {}: it has no {} of {}: it is not the library of rdma-core, or is older than "
        "2010. Install libibverbs1 (Debian, Ubuntu) or libibverbs (Fedora, RHEL, SUSE)",
        kLibrary, name, version);
}

// The library is never closed: providers (libmlx5, …) keep threads and handlers of their own.
void* open_library(const char* file) {
  void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library) return library;
  const char* reason = ::dlerror();
  throw Error(Code::kTransport,
              fmt::format("loading {}: {}. For RDMA install libibverbs1 and ibverbs-providers "
                          "(Debian, Ubuntu) or rdma-core (Fedora, RHEL, SUSE)",
                          file, reason ? reason : "unknown error"));
}

Table load_for_process() {
  Table loaded = load_table(kLibrary);
  fork_found = prepare_for_fork(loaded);
  if (fork_found == ForkSupport::kDisabled) log_warning("{}", describe(ForkSupport::kDisabled));
  return loaded;
}

}  // namespace

Table load_table(const char* file) {
  void* library = open_library(file);
  constexpr const char* kFirst = "IBVERBS_1.0";  // functions that were never changed
  Table t;
  need(library, "ibv_get_device_list", &t.get_device_list);
  need(library, "ibv_free_device_list", &t.free_device_list);
  need(library, "ibv_get_device_name", &t.get_device_name);
  need(library, "ibv_open_device", &t.open_device);
  need(library, "ibv_close_device", &t.close_device);
  need(library, "ibv_query_device", &t.query_device);
  need(library, "ibv_query_port", &t.query_port_compat);
  need(library, "ibv_query_gid", &t.query_gid);
  need(library, "ibv_alloc_pd", &t.alloc_pd);
  need(library, "ibv_dealloc_pd", &t.dealloc_pd);
  need(library, "ibv_reg_mr", &t.reg_mr);
  need(library, "ibv_dereg_mr", &t.dereg_mr);
  need(library, "ibv_create_comp_channel", &t.create_comp_channel, kFirst);
  need(library, "ibv_destroy_comp_channel", &t.destroy_comp_channel, kFirst);
  need(library, "ibv_create_cq", &t.create_cq);
  need(library, "ibv_destroy_cq", &t.destroy_cq);
  need(library, "ibv_get_cq_event", &t.get_cq_event);
  need(library, "ibv_ack_cq_events", &t.ack_cq_events);
  need(library, "ibv_create_qp", &t.create_qp);
  need(library, "ibv_modify_qp", &t.modify_qp);
  need(library, "ibv_query_qp", &t.query_qp);
  need(library, "ibv_destroy_qp", &t.destroy_qp);
  need(library, "ibv_get_async_event", &t.get_async_event);
  need(library, "ibv_ack_async_event", &t.ack_async_event);
  need(library, "ibv_fork_init", &t.fork_init);
  find(library, "ibv_reg_mr_iova2", "IBVERBS_1.8", &t.reg_mr_iova2);
  find(library, "_ibv_query_gid_table", "IBVERBS_1.11", &t.query_gid_table);
  find(library, "ibv_is_fork_initialized", "IBVERBS_1.13", &t.is_fork_initialized);
  return t;
}

const Table& table() {
  if (const Table* other = observe(override_in_force)) return *other;
  static const Table loaded = load_for_process();  // if it throws, the next call tries again
  return loaded;
}

ScopedTable::ScopedTable(const Table& table) : before_(override_in_force.exchange(&table)) {
  if (table.fork_init) fork_found = prepare_for_fork(table);
}

ScopedTable::~ScopedTable() { publish(override_in_force, before_); }

ForkSupport prepare_for_fork(const Table& table) {
  if (table.is_fork_initialized && table.is_fork_initialized() == IBV_FORK_UNNEEDED)
    return ForkSupport::kUnneeded;
  // EINVAL: another library in this process registered memory before.
  return table.fork_init() == 0 ? ForkSupport::kEnabled : ForkSupport::kDisabled;
}

ForkSupport fork_support() { return fork_found; }

std::string describe(ForkSupport support) {
  switch (support) {
    case ForkSupport::kUnneeded:
      return "fork() is safe: the kernel copies registered memory for the child";
    case ForkSupport::kEnabled:
      return "fork() is safe: ibv_fork_init keeps registered memory from the child";
    case ForkSupport::kDisabled:
      return "fork() is not safe with RDMA in this process: ibv_fork_init failed, since memory was "
             "registered before by somebody else. Start the job with RDMAV_FORK_SAFE=1, or use "
             "Linux 5.12 or later";
  }
  return "?";
}

int query_port(const Table& table, ibv_context* context, int port, ibv_port_attr* attributes) {
  auto number = static_cast<uint8_t>(port);
  std::memset(attributes, 0, sizeof *attributes);
  if (verbs_context* extended = verbs_get_ctx_op(context, query_port))
    return extended->query_port(context, number, attributes, sizeof *attributes);
  return table.query_port_compat(context, number,
                                 reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

}  // namespace ringcoll::verbs

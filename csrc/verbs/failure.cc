#include "verbs/failure.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <limits>

#include "base/error.h"

namespace ringcoll::verbs {
namespace {

std::string more_memlock() {
  return fmt::format(
      "registered memory counts as locked, and this process may lock {}: raise the limit (`ulimit "
      "-l unlimited`, /etc/security/limits.d, LimitMEMLOCK= of the service, --ulimit memlock=-1 of "
      "the container)",
      memlock_text(memlock_limit()));
}

std::string of_open(int error) {
  switch (error) {
    case EPERM:
    case EACCES:
      return "this user may not open /dev/infiniband/uverbs*: check its permissions (rdma-core "
             "installs udev rules that make it 0666) or the device cgroup of the container";
    case ENOENT:
    case ENODEV:
    case ENXIO:
      return "there is no /dev/infiniband/uverbs* of it: load the module ib_uverbs, and give the "
             "container /dev/infiniband (--device)";
    case ENOSYS:
      return "no provider knows the device: install ibverbs-providers (rdma-core)";
    default:
      return "";
  }
}

std::string of_modify(int error) {
  switch (error) {
    case EINVAL:
      return "an attribute does not suit the port: a path MTU above its own, or a GID index that "
             "is empty by now (RINGCOLL_GID_INDEX)";
    case ENODATA:
      return "this entry of the GID table is empty: its address was removed from the interface, or "
             "RINGCOLL_GID_INDEX is wrong (`ringcoll doctor` shows the table)";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "the peer's GID cannot be reached from this one: no route, or no answer to ARP or "
             "neighbour discovery. Compare both ends' GIDs (`ringcoll doctor`), or choose another "
             "pair by RINGCOLL_DEVICES and RINGCOLL_GID_INDEX";
    default:
      return "";
  }
}

std::string of_list(int error) {
  if (error != ENOSYS && error != ENOENT) return "";
  return "this kernel has no RDMA loaded: load the modules of the card (mlx5_ib, …) and ib_uverbs";
}

/// For calls that register memory, create or allocate.
std::string of_making(int error, bool registers) {
  switch (error) {
    case ENOMEM:
    case EAGAIN:
    case EPERM:
      return more_memlock();
    case EFAULT:
      return registers ? "the memory is not mapped, or not writable" : "";
    case EOPNOTSUPP:
    case EINVAL:
      return registers ? "this kind of memory cannot be registered (a file system with DAX, device "
                         "memory)"
                       : "more was asked for than the device has";
    case EMFILE:
      return "this process has too many open files: raise `ulimit -n`";
    default:
      return "";
  }
}

}  // namespace

std::string PortId::text() const {
  std::string text = port ? fmt::format("{}:{}", device, port) : device;
  return gid_index < 0 ? text : fmt::format("{}, gid {}", text, gid_index);
}

std::string remedy(std::string_view call, int error) {
  bool registers = call.starts_with("ibv_reg_mr");
  if (call.starts_with("ibv_open_device")) return of_open(error);
  if (call.starts_with("ibv_modify_qp")) return of_modify(error);
  if (call.starts_with("ibv_get_device_list")) return of_list(error);
  bool makes = registers || call.starts_with("ibv_create_") || call.starts_with("ibv_alloc_");
  return makes ? of_making(error, registers) : "";
}

void fail(std::string_view call, int error, const PortId& port_id) {
  std::string what = errno_text(std::string(call).c_str(), error);
  std::string todo = remedy(call, error);
  throw Error(Code::kTransport,
              fmt::format("{} [{}]{}{}", what, port_id.text(), todo.empty() ? "" : ": ", todo));
}

uint64_t memlock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<uint64_t>::max();
  return limit.rlim_cur;
}

std::string memlock_text(uint64_t bytes) {
  if (bytes == std::numeric_limits<uint64_t>::max()) return "unlimited";
  return fmt::format("{} KiB", bytes / 1024);
}

}  // namespace ringcoll::verbs

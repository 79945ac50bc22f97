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

bool begins(std::string_view call, std::string_view name) { return call.starts_with(name); }

}  // namespace

std::string Link::text() const {
  std::string text = port ? fmt::format("{}:{}", device, port) : device;
  return gid_index < 0 ? text : fmt::format("{}, gid {}", text, gid_index);
}

std::string remedy(std::string_view call, int error) {
  if (begins(call, "ibv_open_device")) return of_open(error);
  if (begins(call, "ibv_modify_qp")) return of_modify(error);
  if (begins(call, "ibv_get_device_list") && (error == ENOSYS || error == ENOENT))
    return "the kernel has no RDMA: load the modules of the card and ib_uverbs";
  bool registers = begins(call, "ibv_reg_mr");
  if (registers && error == EFAULT) return "the memory is not mapped, or not writable";
  if (registers && (error == EOPNOTSUPP || error == EINVAL))
    return "this kind of memory cannot be registered (a file system with DAX, device memory)";
  bool allocates = registers || begins(call, "ibv_create_") || begins(call, "ibv_alloc_");
  if (allocates && (error == ENOMEM || error == EAGAIN || error == EPERM)) return more_memlock();
  if (allocates && error == EINVAL) return "more was asked for than the device has";
  if (allocates && error == EMFILE)
    return "this process has too many open files: raise `ulimit -n`";
  return "";
}

void fail(std::string_view call, int error, const Link& link) {
  std::string what = errno_text(std::string(call).c_str(), error);
  std::string todo = remedy(call, error);
  throw Error(Code::kTransport,
              fmt::format("{} [{}]{}{}", what, link.text(), todo.empty() ? "" : ": ", todo));
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

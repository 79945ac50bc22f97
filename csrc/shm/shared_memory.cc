// After a fork() without exec (a data loader's worker) the child shares these mappings. That does
// no harm: the child runs no thread of ringcoll, so it neither writes to the mappings nor reads
// them. Unmapping in the child concerns the child alone. The pages live as long as a process maps
// them or holds the descriptor; a child does not hold it (base/fork.h). MADV_DONTFORK would gain
// nothing, and would turn a stray read in the child into a crash.
#include "shm/shared_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/machine.h"
#include "base/order.h"

namespace ringcoll {
namespace {

// The name shows in /proc/<pid>/maps, and tells open() that the memory is ringcoll's.
constexpr const char* kName = "ringcoll";

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

const char* remedy(int error) {
  switch (error) {
    case EMFILE:
      return "this process has too many open files; raise `ulimit -n`";
    case ENFILE:
      return "the system has too many open files; raise fs.file-max";
    case ENOMEM:
      return "not enough memory or address space; lower RINGCOLL_ARENA_BYTES, or raise the memory "
             "limit of the job (`ulimit -v`, container limit)";
    case EFBIG:
      return "the kernel counts this memory as a file, and this process may not write one so long; "
             "raise `ulimit -f`, or lower RINGCOLL_ARENA_BYTES";
    case ENOSPC:
      return "the memory limit of the container is used up; raise it or lower RINGCOLL_ARENA_BYTES";
    case EACCES:
    case EPERM:
      return "not allowed; all ranks of a host must run as one user, in processes that are "
             "dumpable (prctl PR_SET_DUMPABLE), with /proc not mounted with hidepid";
    case ENOENT:
      return "no such process or descriptor here; the ranks must share a PID namespace "
             "(containers: "
             "--pid=host or one container) and /proc must be mounted";
    case ENOSYS:
      return "this kernel or sandbox has no memfd_create; use RINGCOLL_TRANSPORT=tcp";
    default:
      return "use RINGCOLL_TRANSPORT=tcp to do without shared memory";
  }
}

[[noreturn]] void fail(const std::string& doing, const char* call, int error) {
  throw Error(Code::kTransport,
              fmt::format("{}: {}: {}", doing, errno_text(call, error), remedy(error)));
}

struct stat status_of(int fd, const std::string& doing) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail(doing, "fstat", errno);
  return status;
}

// Maps all of the file.
std::byte* map_anew(int fd, size_t bytes, int protection, const std::string& doing) {
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) fail(doing, "mmap", errno);
  return static_cast<std::byte*>(at);
}

#ifndef __SANITIZE_THREAD__
std::byte* map(int fd, size_t bytes, int protection, bool /*own*/, const std::string& doing) {
  return map_anew(fd, bytes, protection, doing);
}
void unmap(std::byte* at, size_t bytes) { ::munmap(at, bytes); }
#else
// ThreadSanitizer identifies memory by its address. So it sees what ranks that are threads of one
// process do to shared memory only if all of them use one mapping.
struct Mapping {
  std::byte* at;
  size_t bytes;
  int users;
};
std::mutex mapping;
std::map<ino_t, Mapping> mapped;

// `own`: this process made the memory.
std::byte* map(int fd, size_t bytes, int protection, bool own, const std::string& doing) {
  if (!own) return map_anew(fd, bytes, protection, doing);
  ino_t inode = status_of(fd, doing).st_ino;
  std::lock_guard lock(mapping);
  auto found = mapped.find(inode);
  if (found == mapped.end()) {
    std::byte* at = map_anew(fd, bytes, protection, doing);
    found = mapped.insert({inode, {at, bytes, 0}}).first;
  }
  found->second.users++;
  return found->second.at;
}
void unmap(std::byte* at, size_t bytes) {
  std::lock_guard lock(mapping);
  auto found = std::ranges::find_if(mapped, [&](auto& each) { return each.second.at == at; });
  if (found != mapped.end()) {
    if (--found->second.users > 0) return;
    bytes = found->second.bytes;
    mapped.erase(found);
  }
  ::munmap(at, bytes);
}
#endif

// Where the link /proc/<pid>/fd/<fd> points to: "/memfd:ringcoll (deleted)".
std::string link_target(const std::string& path, const std::string& doing) {
  char target[128];
  ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  if (length < 0) fail(doing, "readlink", errno);
  return std::string(target, static_cast<size_t>(length));
}

}  // namespace

SharedMemory SharedMemory::create(size_t bytes) {
  SharedMemory memory;
  memory.bytes_ = round_up(std::max<size_t>(bytes, 1), page_bytes());
  std::string doing = fmt::format("making {} bytes of shared memory", memory.bytes_);
  memory.fd_ = Fd(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_) fail(doing, "memfd_create", errno);
  // Beyond this limit the kernel does not only refuse: it ends the process with SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && memory.bytes_ > limit.rlim_cur)
    fail(doing, "ftruncate", EFBIG);
  if (::ftruncate(memory.fd(), static_cast<off_t>(memory.bytes_)) != 0)
    fail(doing, "ftruncate", errno);
  // Nobody can change a sealed size, so a reader never meets SIGBUS, whatever becomes of the
  // writer.
  if (::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    fail(doing, "fcntl(F_ADD_SEALS)", errno);
  memory.inode_ = status_of(memory.fd(), doing).st_ino;
  memory.data_ = map(memory.fd(), memory.bytes_, PROT_READ | PROT_WRITE, true, doing);
  return memory;
}

std::span<std::byte> SharedMemory::pages_within(const std::byte* at, size_t bytes) const {
  auto first = static_cast<size_t>(at - data_);
  size_t end = (first + bytes) / page_bytes() * page_bytes();
  first = round_up(first, page_bytes());
  return {data_ + first, end > first ? end - first : 0};
}

bool SharedMemory::punch(std::span<std::byte> pages) const {
  return pages.empty() || ::fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                      pages.data() - data_, static_cast<off_t>(pages.size())) == 0;
}

void SharedMemory::discard(const std::byte* at, size_t bytes) { punch(pages_within(at, bytes)); }

void SharedMemory::clear(std::byte* at, size_t bytes) {
  auto zero = [](std::byte* from, const std::byte* to) {
    for (; from < to; from += sizeof(uint64_t))
      publish(*reinterpret_cast<std::atomic<uint64_t>*>(from), 0);
  };
  std::byte* end = at + bytes;
  std::span<std::byte> pages = pages_within(at, bytes);
  if (pages.empty() || !punch(pages)) return zero(at, end);
  zero(at, pages.data());
  zero(pages.data() + pages.size(), end);
}

SharedMemory SharedMemory::open(int pid, int fd, size_t bytes, bool writable) {
  std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  std::string doing = fmt::format("mapping {} bytes of shared memory from {}", bytes, path);
  // Checked before it is opened: in another PID namespace than the maker's, the path may name
  // anything.
  std::string target = link_target(path, doing);
  check(target.starts_with("/memfd:ringcoll"), Code::kTransport,
        "{}: it is {}, not memory of ringcoll: the ranks do not share a PID namespace "
        "(containers: --pid=host or one container)",
        doing, target);
  SharedMemory memory;
  memory.fd_ = Fd(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY));
  if (!memory.fd_) fail(doing, "open", errno);
  struct stat status = status_of(memory.fd(), doing);
  size_t pages = round_up(std::max<size_t>(bytes, 1), page_bytes());
  check(pages >= bytes && static_cast<uint64_t>(status.st_size) >= pages, Code::kTransport,
        "{}: it has only {} bytes", doing, status.st_size);
  memory.bytes_ = pages;
  memory.inode_ = status.st_ino;
  int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  memory.data_ = map(memory.fd(), pages, protection, pid == ::getpid(), doing);
  memory.fd_.reset();  // the mapping does not need it, and a job has many peers
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      inode_(std::exchange(other.inode_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(inode_, other.inode_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) unmap(data_, bytes_);
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  check(!id.empty(), Code::kTransport,
        "reading /proc/sys/kernel/random/boot_id: it cannot be read: is /proc mounted? Use "
        "RINGCOLL_TRANSPORT=tcp to do without");
  return id;
}

}  // namespace ringcoll

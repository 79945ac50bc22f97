#include "shm/unmap_watch.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/machine.h"
#include "base/threads.h"

namespace ringcoll {
namespace {

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1  // Linux 5.11
#endif

constexpr const char* kDoing = "watching for memory that is freed";

[[noreturn]] void fail(const char* call, int error) {
  throw Error(Code::kTransport,
              fmt::format("{}: {}: this kernel or container does not offer userfaultfd with events "
                          "(Linux 5.11, seccomp)",
                          kDoing, errno_text(call, error)));
}

Fd make_eventfd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) fail("eventfd", errno);
  return fd;
}

// UFFD_USER_MODE_ONLY needs no privilege. It excludes faults in the kernel, and this watch handles
// no faults at all.
Fd make_userfaultfd() {
  Fd fd = Fd::made_by([] {
    return static_cast<int>(
        ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
  });
  if (!fd) fail("userfaultfd", errno);
  return fd;
}

}  // namespace

UnmapWatch::Page::Page() {
  void* page =
      ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) fail("mmap", errno);
  data = static_cast<std::byte*>(page);
}

UnmapWatch::Page::~Page() { ::munmap(data, page_bytes()); }

UnmapWatch::UnmapWatch() : stop_(make_eventfd()), fd_(make_userfaultfd()) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_UNMAP |
                 UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
  if (::ioctl(fd_.get(), UFFDIO_API, &api) != 0) fail("ioctl(UFFDIO_API)", errno);
  if (!watch(probe_.data, page_bytes())) fail("ioctl(UFFDIO_REGISTER)", errno);
  thread_ = start_thread("ringcoll-unmap", [this] { run(); });
}

// Closing the descriptor ends the watch of all memory, the probe too, and frees a thread that is
// being held.
UnmapWatch::~UnmapWatch() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t put = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

bool UnmapWatch::watch(const void* data, size_t bytes) {
  size_t page = page_bytes();
  auto first = reinterpret_cast<uintptr_t>(data) / page * page;
  auto end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  uffdio_register request{};
  request.range = {first, end - first};
  request.mode = UFFDIO_REGISTER_MODE_WP;  // the only mode that never stops an access
  return ::ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0;
}

// The kernel refuses requests on a watch whose mappings are being changed.
bool UnmapWatch::changing() const {
  uffdio_writeprotect request{};
  request.range = {reinterpret_cast<uintptr_t>(probe_.data), page_bytes()};
  request.mode = 0;  // removes a protection that the page does not have
  return ::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request) != 0 && errno == EAGAIN;
}

void UnmapWatch::take_changes(const std::function<void(uintptr_t first, uintptr_t end)>& changed) {
  std::array<Range, kMostChanges> taken;
  size_t count = 0;
  for (bool settled = false; !settled;) {
    {
      std::lock_guard lock(mutex_);
      settled = !changing();
      if (settled) {
        count = std::exchange(count_, 0);
        std::copy_n(changes_.begin(), count, taken.begin());
      }
    }
    if (!settled) ::sched_yield();  // until the thread has read the event
  }
  for (size_t i = 0; i < count; i++) changed(taken[i].first, taken[i].end);
}

void UnmapWatch::note(Range change) {
  if (count_ < kMostChanges)
    changes_[count_++] = change;
  else
    changes_[0] = {0, UINTPTR_MAX};
}

void UnmapWatch::read_events() {
  std::lock_guard lock(mutex_);
  uffd_msg message;
  while (::read(fd_.get(), &message, sizeof message) == static_cast<ssize_t>(sizeof message)) {
    if (message.event == UFFD_EVENT_REMAP)
      note({message.arg.remap.from, message.arg.remap.from + message.arg.remap.len});
    else if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE)
      note({message.arg.remove.start, message.arg.remove.end});
  }
}

void UnmapWatch::run() {
  std::array<pollfd, 2> fds = {{{fd_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
  while (fds[1].revents == 0) {
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    read_events();
  }
}

}  // namespace ringcoll

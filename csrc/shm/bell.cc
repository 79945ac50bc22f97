#include "shm/bell.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"

namespace ringcoll {
namespace {

// If the pipe is full, its owner is notified already.
void put_byte(int fd) noexcept {
  char byte = 0;
  [[maybe_unused]] ssize_t put = ::write(fd, &byte, 1);
}

uint64_t inode_of(int fd) {
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return 0;
  return status.st_ino;
}

}  // namespace

Bell::Bell() {
  int ends[2] = {-1, -1};
  read_ = Fd::made_by([&] { return ::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0 ? ends[0] : -1; });
  if (!read_) log_debug("no pipe can wake this rank when it waits: {}", errno_text("pipe2", errno));
  write_ = Fd(ends[1]);
  inode_ = inode_of(read_.get());
}

void Bell::ring() const noexcept { put_byte(write_.get()); }

void Bell::silence() const noexcept {
  std::array<char, 256> bytes;
  while (::read(read_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
  }
}

std::unique_ptr<Bell> Bells::take() {
  std::lock_guard lock(mutex_);
  if (!free_.empty()) {
    std::unique_ptr<Bell> bell = std::move(free_.back());
    free_.pop_back();
    return bell;
  }
  free_.reserve(made_ + 1);  // so that give_back(), in a destructor, allocates nothing
  auto bell = std::make_unique<Bell>();
  if (bell->fd() >= 0) made_++;
  return bell;
}

void Bells::give_back(std::unique_ptr<Bell> bell) {
  if (bell->fd() < 0) return;
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(bell));
}

// Opens the pipe for reading, too. So it always has a reader, and a write to a pipe whose owner has
// ended raises no SIGPIPE.
void BellRopes::pull(int pid, int fd, uint64_t inode) noexcept {
  if (inode == 0) return;
  std::lock_guard lock(mutex_);
  auto rope = std::ranges::find(ropes_, inode, &Rope::inode);
  if (rope == ropes_.end()) {
    std::array<char, 64> path;
    std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", pid, fd);
    Fd bell;
    // Checked before it is opened: to open a file of another kind may have effects.
    struct stat status{};
    if (::stat(path.data(), &status) == 0 && S_ISFIFO(status.st_mode) && status.st_ino == inode)
      bell = Fd::made_by([&] { return ::open(path.data(), O_RDWR | O_CLOEXEC | O_NONBLOCK); });
    if (inode_of(bell.get()) != inode)
      return log_debug("the pipe {} that wakes another rank cannot be used: {}", path.data(),
                       errno_text("open", errno));
    rope = &ropes_[next_++ % ropes_.size()];
    *rope = {std::move(bell), inode};
  }
  put_byte(rope->bell.get());
}

}  // namespace ringcoll

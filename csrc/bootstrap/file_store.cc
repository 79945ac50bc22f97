// file:///directory: one file for each key, linked into place whole.
//
// Rank 0 owns the directory while it holds a lock on <prefix>lock, which the kernel takes away when
// its process ends, however it ends. Nothing in the directory counts while no living rank 0 owns
// it, so files of a job that was killed mislead nobody: the next rank 0 removes them before it says
// that it is ready (second lock). At the end rank 0 removes them all; a rank that finds that rank 0
// was killed removes them in its place. Only if all ranks are killed do files stay, until the
// directory is used again.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "bootstrap/claim.h"
#include "bootstrap/store.h"

namespace ringcoll {
namespace {

constexpr std::string_view kPrefix = "ringcoll-store.";
constexpr const char* kLockName = "ringcoll-store.lock";
// Bytes of the lock file: who owns the directory, and whether it is clean.
constexpr off_t kOwnerByte = 0, kReadyByte = 1;
// A rank that cleans up for a rank 0 that was killed holds the lock for a moment.
constexpr double kLockSeconds = 1;
constexpr Duration kLockPause = std::chrono::milliseconds(20);
constexpr size_t kMaxNameBytes = 255;

struct flock byte_lock(off_t byte) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

// Locks of the open file, not of the process: two ranks in one process exclude each other, too.
bool try_lock(int fd, off_t byte) {
  struct flock lock = byte_lock(byte);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}
bool is_locked(int fd, off_t byte) {
  struct flock lock = byte_lock(byte);
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string read_all(int fd) {
  std::string bytes;
  char buffer[16384];
  for (;;) {
    ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, Code::kTransport, "{}", errno_text("read", errno));
    if (got == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(got));
    check(bytes.size() <= kMaxValueBytes, Code::kTransport, "a file of more than {} bytes",
          kMaxValueBytes);
  }
}

// 0, or errno (a full disk, say).
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

class FileStore : public Store {
 public:
  FileStore(const std::string& directory, Rank rank)
      : name_("file://" + directory), directory_(directory), rank_(rank) {
    check(directory.starts_with('/'), Code::kInvalidArgument,
          "{}: three slashes and an absolute path are needed, file:///directory", name_);
    open_directory();
    if (rank_ == 0) own();
  }
  ~FileStore() override {
    try {
      if (rank_ == 0)
        sweep(true);
      else
        sweep_for_the_dead();
    } catch (const Error& error) {
      log_warning("{}: files may be left: {}", name_, error.what());
    }
  }

  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override;
  void remove(const std::string& key, Deadline) override {
    unlink_in(open_directory().get(), file_of(key));
  }
  const std::string& name() const override { return name_; }

 private:
  // Opened anew for each request: on NFS that is what makes new files seen.
  Fd open_directory() const {
    Fd fd(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    check(static_cast<bool>(fd), Code::kTransport,
          "{}: {}; it must be a directory that all ranks can write to", name_,
          errno_text("open", errno));
    return fd;
  }
  std::string file_of(const std::string& key) const {
    std::string file = std::string(kPrefix) + "key." + quote_key(key);
    check(file.size() <= kMaxNameBytes, Code::kInvalidArgument, "{}: the key \"{}\" is too long",
          name_, key);
    return file;
  }
  void unlink_in(int directory, const std::string& file) const {
    check(unlinkat(directory, file.c_str(), 0) == 0 || errno == ENOENT, Code::kTransport,
          "{}: {}: {}", name_, file, errno_text("unlink", errno));
  }

  void own();
  bool try_own();
  bool owner_is_ready(int directory) const;
  void sweep(bool with_lock);
  void sweep_for_the_dead();

  const std::string name_;
  const std::string directory_;
  const Rank rank_;
  Fd lock_;
};

// Takes the lock if nobody has it. The file may be removed between opening and locking it: then it
// is not the one.
bool FileStore::try_own() {
  Fd directory = open_directory();
  lock_ = Fd(openat(directory.get(), kLockName, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  check(static_cast<bool>(lock_), Code::kTransport,
        "{}: {}: {}; all ranks must be able to write there", name_, kLockName,
        errno_text("open", errno));
  if (!try_lock(lock_.get(), kOwnerByte)) {
    bool taken = errno == EAGAIN || errno == EACCES;
    check(taken, Code::kTransport, "{}: {}; this file system has no locks: use a tcp:// store",
          name_, errno_text("fcntl(F_OFD_SETLK)", errno));
    return false;
  }
  struct stat by_name, by_fd;
  bool same = fstatat(directory.get(), kLockName, &by_name, 0) == 0 &&
              fstat(lock_.get(), &by_fd) == 0 && by_name.st_ino == by_fd.st_ino &&
              by_name.st_dev == by_fd.st_dev;
  return same;
}

void FileStore::own() {
  Deadline give_up(seconds(kLockSeconds));
  while (!try_own()) {
    check(!give_up.passed(), Code::kInvalidArgument,
          "{}: two processes claim rank 0, {} and {}; or they are of two jobs: give each job a "
          "directory of its own",
          name_, read_all(lock_.get()), this_process());
    std::this_thread::sleep_for(kLockPause);
  }
  sweep(false);
  int error = ftruncate(lock_.get(), 0) == 0 ? write_all(lock_.get(), this_process()) : errno;
  check(error == 0, Code::kTransport, "{}: {}: {}", name_, kLockName, errno_text("write", error));
  check(try_lock(lock_.get(), kReadyByte), Code::kTransport, "{}: {}", name_,
        errno_text("fcntl(F_OFD_SETLK)", errno));
}

// Removes all files of the store; `lock_` is held.
void FileStore::sweep(bool with_lock) {
  Fd directory = open_directory();
  std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fcntl(directory.get(), F_DUPFD_CLOEXEC, 0)),
                                              closedir);
  check(entries != nullptr, Code::kTransport, "{}: {}", name_, errno_text("fdopendir", errno));
  while (dirent* entry = readdir(entries.get())) {
    std::string_view file = entry->d_name;
    if (file.starts_with(kPrefix) && file != kLockName)
      unlink_in(directory.get(), std::string(file));
  }
  if (with_lock) unlink_in(directory.get(), kLockName);
}

void FileStore::sweep_for_the_dead() {
  Fd directory = open_directory();
  bool there = faccessat(directory.get(), kLockName, F_OK, 0) == 0;
  if (there && try_own()) sweep(true);
}

bool FileStore::owner_is_ready(int directory) const {
  if (rank_ == 0) return true;
  Fd lock(openat(directory, kLockName, O_RDONLY | O_CLOEXEC));
  return lock && is_locked(lock.get(), kReadyByte);
}

std::optional<std::string> FileStore::try_get(const std::string& key, Deadline) {
  Fd directory = open_directory();
  if (!owner_is_ready(directory.get())) return {};
  std::string file = file_of(key);
  Fd fd(openat(directory.get(), file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {};
  check(static_cast<bool>(fd), Code::kTransport, "{}: {}: {}", name_, file,
        errno_text("open", errno));
  return read_all(fd.get());
}

void FileStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  std::string file = file_of(key);
  std::string temporary = fmt::format("{}tmp.{}", kPrefix, fresh_token());
  Fd directory = open_directory();
  // Only for this user: what ranks tell each other includes the secret of a job that was given
  // none.
  Fd fd(openat(directory.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  check(static_cast<bool>(fd), Code::kTransport, "{}: {}; all ranks must be able to write there",
        name_, errno_text("open", errno));
  int error = write_all(fd.get(), value);
  const char* call = "write";
  if (error == 0) {
    call = "link";
    bool linked = linkat(directory.get(), temporary.c_str(), directory.get(), file.c_str(), 0) == 0;
    error = linked ? 0 : errno;
  }
  unlink_in(directory.get(), temporary);
  if (error == 0) return;
  check(error == EEXIST, Code::kTransport, "{}: {}: {}", name_, file, errno_text(call, error));
  auto found = try_get(key, deadline);
  check(!found || *found == value, Code::kInvalidArgument,
        "{}: \"{}\" is set already, to another value", name_, key);
}

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& rest, Rank rank, Deadline) {
  return std::make_unique<FileStore>(rest, rank);
}

}  // namespace ringcoll

// file:///directory: one file for each key, linked into place once it is complete.
//
// Rank 0 owns the directory while it holds a lock on <prefix>lock. The kernel releases the lock
// when its process ends, however it ends. Files count only while a living rank 0 owns the
// directory, so files of a killed job mislead nobody. A new rank 0 removes them before it takes a
// second lock, which says that it is ready. At the end rank 0 releases the second lock and then
// removes all files. A rank that finds that rank 0 was killed removes them instead. A rank that has
// linked a file checks afterwards whether rank 0 is still ready, and removes the file if not. So
// either that rank or rank 0 removes it. Files stay only if all ranks are killed, until the
// directory is used again.
//
// Others may be able to write to the directory. So a file counts only if the kernel reports it as a
// regular file of this user with one name. No symbolic link in the directory is followed, and only
// files that this process has just made are written to.
#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "connect/claim.h"
#include "store/store.h"

namespace ringcoll {
namespace {

constexpr std::string_view kPrefix = "ringcoll-store.";
constexpr const char* kLockName = "ringcoll-store.lock";
// Bytes of the lock file that are locked: by the owner of the directory, and by an owner that is
// ready.
constexpr off_t kOwnerByte = 0, kReadyByte = 1;
// A rank that cleans up after a killed rank 0 holds the lock for a moment.
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

// Locks of the open file, not of the process: two ranks of one process exclude each other, too.
bool try_lock(int fd, off_t byte) {
  struct flock lock = byte_lock(byte);
  return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}
void unlock(int fd, off_t byte) {
  struct flock lock = byte_lock(byte);
  lock.l_type = F_UNLCK;
  fcntl(fd, F_OFD_SETLK, &lock);
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

// Returns 0, or errno (of a full disk, for example).
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

std::string describe_user(uid_t user) {
  char buffer[4096];
  passwd entry{}, *found = nullptr;
  bool known = getpwuid_r(user, &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr;
  return known ? fmt::format("{} (uid {})", entry.pw_name, user) : fmt::format("uid {}", user);
}

const char* kind_of(const struct stat& status) {
  if (S_ISREG(status.st_mode)) return "a file";
  if (S_ISLNK(status.st_mode)) return "a symbolic link";
  return S_ISDIR(status.st_mode) ? "a directory" : "no regular file";
}

class FileStore : public Store {
 public:
  FileStore(const std::string& directory, Rank rank)
      : name_("file://" + directory), directory_(directory), rank_(rank) {
    check(directory.starts_with('/'), Code::kInvalidArgument,
          "{}: three slashes and an absolute path are needed, file:///directory", name_);
    learn_user();
    if (rank_ == 0) own();
  }
  ~FileStore() override {
    try {
      if (rank_ == 0)
        disown();
      else
        try_clear();
    } catch (const Error& error) {
      // If a file belongs to another user, the call that met it has reported that.
      if (error.code() == Code::kInvalidArgument)
        log_debug("{}", error.what());
      else
        log_warning("{}: files may be left: {}", name_, error.what());
    }
  }

  void set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::optional<std::string> try_get(const std::string& key, Deadline deadline) override;
  void remove(const std::string& key, Deadline) override {
    unlink_in(open_directory().get(), file_of(key));
  }
  const std::string& name() const override { return name_; }
  std::string remark() const override {
    return fmt::format("only processes of user {} can use this store", describe_user(user_));
  }

 private:
  /// An open file of this user, or none.
  struct Found {
    Fd fd;
    nlink_t names = 0;
  };
  /// A new file, open.
  struct Made {
    Fd fd;
    std::string name;
  };

  // Opened for each request, so that new files are seen on NFS.
  Fd open_directory() const {
    Fd fd(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int error = errno;
    check(static_cast<bool>(fd), Code::kTransport,
          "{}: {} (this process is of user {}); it must be a directory that all ranks can write to",
          name_, errno_text("open", error), describe_user(geteuid()));
    return fd;
  }
  std::string file_of(const std::string& key) const {
    std::string file = std::string(kPrefix) + "key." + quote_key(key);
    check(file.size() <= kMaxNameBytes, Code::kInvalidArgument, "{}: the key \"{}\" is too long",
          name_, key);
    return file;
  }
  bool is_own(const struct stat& status) const {
    return S_ISREG(status.st_mode) && status.st_uid == user_;
  }

  Made make_file(int directory) const;
  Found find(int directory, const std::string& file, int flags) const;
  void unlink_in(int directory, const std::string& file) const;
  void learn_user();
  void own();
  void disown();
  bool try_own();
  bool try_clear();
  bool owner_is_ready(int directory) const;
  void sweep(bool with_lock);
  void check_is_set_to(const std::string& key, const std::string& value, Deadline deadline) const;
  [[noreturn]] void throw_strange(const std::string& file, const struct stat& status) const;

  const std::string name_;
  const std::string directory_;
  const Rank rank_;
  uid_t user_ = 0;  // the user whose files count
  Fd lock_;
};

void FileStore::throw_strange(const std::string& file, const struct stat& status) const {
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{}: {} is {} of user {}, and this process is of user {}. A file:// store is for "
                  "processes of one user and follows no symbolic link: run all ranks as one user, "
                  "or let them meet at a tcp:// store with RINGCOLL_SECRET. If the file is not of "
                  "this job, remove it, or give the job a directory of its own",
                  name_, file, kind_of(status), describe_user(status.st_uid),
                  describe_user(user_)));
}

// Readable only for this user: values include the secret of a job that was given none.
FileStore::Made FileStore::make_file(int directory) const {
  std::string name = fmt::format("{}tmp.{}", kPrefix, fresh_token());
  Fd fd(openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  int error = errno;
  check(static_cast<bool>(fd), Code::kTransport,
        "{}: {} (this process is of user {}); all ranks must be able to write there", name_,
        errno_text("open", error), describe_user(geteuid()));
  return {std::move(fd), std::move(name)};
}

// Throws unless `file` is a regular file of this user, or does not exist. A FIFO or a device does
// not make it block.
FileStore::Found FileStore::find(int directory, const std::string& file, int flags) const {
  Fd fd(openat(directory, file.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  int error = fd ? 0 : errno;
  struct stat status{};
  bool known = fd ? fstat(fd.get(), &status) == 0
                  : fstatat(directory, file.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  if (!known && errno == ENOENT) return {};
  if (known && !is_own(status)) throw_strange(file, status);
  if (error == ENOENT) return {};
  check(known && error == 0, Code::kTransport, "{}: {}: {}", name_, file,
        errno_text("open", error != 0 ? error : errno));
  return {std::move(fd), status.st_nlink};
}

void FileStore::unlink_in(int directory, const std::string& file) const {
  if (unlinkat(directory, file.c_str(), 0) == 0 || errno == ENOENT) return;
  int error = errno;
  find(directory, file, O_RDONLY);  // throws if it belongs to another user
  throw Error(Code::kTransport,
              fmt::format("{}: {}: {}", name_, file, errno_text("unlink", error)));
}

// Learns the user from a file that this process makes: an NFS server may know it by another number.
void FileStore::learn_user() {
  Fd directory = open_directory();
  Made made = make_file(directory.get());
  struct stat status{};
  check(fstat(made.fd.get(), &status) == 0, Code::kTransport, "{}: {}", name_,
        errno_text("fstat", errno));
  user_ = status.st_uid;
  unlink_in(directory.get(), made.name);
}

// The file is locked before it is linked into place, so a process that finds it can tell whether
// its owner lives.
bool FileStore::try_own() {
  Fd directory = open_directory();
  Made made = make_file(directory.get());
  check(try_lock(made.fd.get(), kOwnerByte), Code::kTransport,
        "{}: {}; this file system has no locks: use a tcp:// store", name_,
        errno_text("fcntl(F_OFD_SETLK)", errno));
  int error = write_all(made.fd.get(), this_process());
  const char* call = "write";
  if (error == 0) {
    call = "link";
    bool linked = linkat(directory.get(), made.name.c_str(), directory.get(), kLockName, 0) == 0;
    error = linked ? 0 : errno;
  }
  unlink_in(directory.get(), made.name);
  // ENOENT: a rank that cleans up after a killed rank 0 has removed it.
  check(error == 0 || error == EEXIST || error == ENOENT, Code::kTransport, "{}: {}: {}", name_,
        kLockName, errno_text(call, error));
  if (error == 0) lock_ = std::move(made.fd);
  return error == 0;
}

void FileStore::own() {
  Deadline give_up(seconds(kLockSeconds));
  while (!try_own()) {
    bool cleared = try_clear();
    Found rival = find(open_directory().get(), kLockName, O_RDONLY);
    check(!give_up.passed(), Code::kInvalidArgument,
          "{}: two processes claim rank 0, {} and {}; or they are of two jobs: give each job a "
          "directory of its own",
          name_, rival.fd ? read_all(rival.fd.get()) : "one that has just ended", this_process());
    if (!cleared) std::this_thread::sleep_for(kLockPause);
  }
  sweep(false);
  check(try_lock(lock_.get(), kReadyByte), Code::kTransport, "{}: {}", name_,
        errno_text("fcntl(F_OFD_SETLK)", errno));
}

void FileStore::disown() {
  // Before the sweep: a rank that links a file later finds that no owner is ready.
  unlock(lock_.get(), kReadyByte);
  sweep(true);
}

// Removes all files of this user that the store has made; requires the lock. Files of other users
// do not count, and may belong to another job.
void FileStore::sweep(bool with_lock) {
  Fd directory = open_directory();
  std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(fcntl(directory.get(), F_DUPFD_CLOEXEC, 0)),
                                              closedir);
  check(entries != nullptr, Code::kTransport, "{}: {}", name_, errno_text("fdopendir", errno));
  while (dirent* entry = readdir(entries.get())) {
    std::string file = entry->d_name;
    if (!file.starts_with(kPrefix) || file == kLockName) continue;
    struct stat status{};
    if (fstatat(directory.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && is_own(status))
      unlink_in(directory.get(), file);
  }
  if (with_lock) unlink_in(directory.get(), kLockName);
}

// Removes what a killed rank 0 has left. False: rank 0 lives, or another process is doing so. The
// lock file may be replaced between open() and the lock; then this is not the current one.
bool FileStore::try_clear() {
  Fd directory = open_directory();
  Found left = find(directory.get(), kLockName, O_RDWR);
  if (!left.fd) return true;
  if (!try_lock(left.fd.get(), kOwnerByte)) return false;
  struct stat by_name{}, by_fd{};
  bool same = fstatat(directory.get(), kLockName, &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
              fstat(left.fd.get(), &by_fd) == 0 && by_name.st_ino == by_fd.st_ino &&
              by_name.st_dev == by_fd.st_dev;
  if (same) sweep(true);
  return same;
}

bool FileStore::owner_is_ready(int directory) const {
  if (rank_ == 0) return true;
  Found lock = find(directory, kLockName, O_RDONLY);
  return lock.fd && lock.names == 1 && is_locked(lock.fd.get(), kReadyByte);
}

std::optional<std::string> FileStore::try_get(const std::string& key, Deadline) {
  Fd directory = open_directory();
  if (!owner_is_ready(directory.get())) return {};
  Found found = find(directory.get(), file_of(key), O_RDONLY);
  // A file with two names is being linked into place, or is a link to another file.
  if (!found.fd || found.names != 1) return {};
  return read_all(found.fd.get());
}

void FileStore::set(const std::string& key, const std::string& value, Deadline deadline) {
  std::string file = file_of(key);
  Fd directory = open_directory();
  Made made = make_file(directory.get());
  int error = write_all(made.fd.get(), value);
  const char* call = "write";
  if (error == 0) {
    call = "link";
    bool linked = linkat(directory.get(), made.name.c_str(), directory.get(), file.c_str(), 0) == 0;
    error = linked ? 0 : errno;
  }
  unlink_in(directory.get(), made.name);
  if (error == 0 && !owner_is_ready(directory.get())) unlink_in(directory.get(), file);
  // ENOENT: rank 0 has left or begun anew meanwhile, and has removed all files. It would have
  // removed this one, too.
  if (error == 0 || error == ENOENT) return;
  check(error == EEXIST, Code::kTransport, "{}: {}: {}", name_, file, errno_text(call, error));
  check_is_set_to(key, value, deadline);
}

// Another process that sets the key at this moment may not have finished, so a file with two names
// is looked at again.
void FileStore::check_is_set_to(const std::string& key, const std::string& value,
                                Deadline deadline) const {
  for (;;) {
    Found found = find(open_directory().get(), file_of(key), O_RDONLY);
    if (!found.fd) return;  // removed meanwhile
    if (found.names == 1)
      return check(read_all(found.fd.get()) == value, Code::kInvalidArgument,
                   "{}: \"{}\" is set already, to another value", name_, key);
    check(!deadline.passed(), Code::kTransport,
          "{}: {} has {} names: another process links files there; give the job a directory of "
          "its own",
          name_, file_of(key), found.names);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

std::unique_ptr<Store> open_file_store(const std::string& rest, Rank rank, Deadline) {
  return std::make_unique<FileStore>(rest, rank);
}

}  // namespace ringcoll

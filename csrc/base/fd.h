// A file descriptor that is closed by its owner and by nobody else, and that no child of fork(2)
// keeps open (base/fork.h).
#pragma once

#include <type_traits>
#include <utility>

namespace ringcoll {

class Fd {
 public:
  Fd() = default;
  /// Takes a descriptor over; negative: none. errno stays as it is. A fork by another thread since
  /// it was made has given the child a copy: see made_by().
  explicit Fd(int fd);
  /// What `make()` returns, a system call that does not block, with no fork between.
  template <typename Make>
  static Fd made_by(Make&& make);
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  static Fd made(int (*call)(void*), void* state);

  int fd_ = -1;
};

template <typename Make>
Fd Fd::made_by(Make&& make) {
  return made([](void* state) { return (*static_cast<std::remove_reference_t<Make>*>(state))(); },
              &make);
}

}  // namespace ringcoll

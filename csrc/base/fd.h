// Owns a file descriptor. No child of fork(2) keeps it open (base/fork.h).
#pragma once

#include <type_traits>
#include <utility>

namespace ringcoll {

class Fd {
 public:
  Fd() = default;
  /// Takes a descriptor over; negative: none. Keeps errno. If another thread forks between the
  /// making of the descriptor and this, the child has a copy; made_by() prevents that.
  explicit Fd(int fd);
  /// Owns what `make()` returns; no thread forks meanwhile. `make()` is a system call that does not
  /// block.
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

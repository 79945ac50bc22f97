// Reads and writes another process's own memory (process_vm_readv(2)), where the kernel gives the
// right that a debugger needs. Yama's ptrace_scope 1, usual on Ubuntu, allows this only to an
// ancestor of the process, and some sandboxes refuse it. This library does not ask a process to
// allow it (PR_SET_PTRACER). That would open the process to every other process of its user, which
// its owner must decide.
#pragma once

#include <cstdint>

namespace ringcoll {

class PeerMemory {
 public:
  PeerMemory() = default;
  /// The memory of process `pid`, which has `nonce` at its address `at`. No other process has that
  /// nonce.
  PeerMemory(int pid, uint64_t at, uint64_t nonce) : pid_(pid), nonce_at_(at), nonce_(nonce) {}

  /// Tries whether the nonce can be read.
  bool can_be_read() const;

  enum class Result : uint8_t {
    kDone,
    kNotThere,  // some of these addresses are not mapped, or reading is not allowed any more
    kGone,      // the process has ended; another may have its number
  };
  /// Copies from the peer's address `from` to `place`. Then, if `word` is not null, copies the
  /// eight bytes at `word_at` to it. After kNotThere, an unspecified part has been copied. The
  /// nonce proves that the memory is the intended process's. With a word the last stretch does not
  /// read the nonce, since each address costs a third of a microsecond. The caller then compares
  /// the word, which no other process has there.
  Result read(uint64_t from, void* place, uint64_t bytes, uint64_t word_at = 0,
              uint64_t* word = nullptr) const;
  /// Copies from `place` to the peer's address `to`. The caller knows that the process lives and
  /// has the memory there. After kNotThere or kGone, an unspecified part has been copied.
  Result write(uint64_t to, const void* place, uint64_t bytes) const;

 private:
  int pid_ = 0;
  uint64_t nonce_at_ = 0;
  uint64_t nonce_ = 0;
};

}  // namespace ringcoll

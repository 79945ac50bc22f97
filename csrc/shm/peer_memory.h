// Reading another process's own memory (process_vm_readv(2)), where the kernel allows it: the same
// right that a debugger needs. Yama's ptrace_scope 1, usual on Ubuntu, refuses it to processes that
// are no parents of one another, and some sandboxes do. This library does not ask a process to
// allow it (PR_SET_PTRACER): that would open it to every process of its user, which is for its
// owner to say.
#pragma once

#include <cstdint>

namespace ringcoll {

class PeerMemory {
 public:
  PeerMemory() = default;
  /// Of the process that has `nonce`, which nobody else has, at the address `at`.
  PeerMemory(int pid, uint64_t at, uint64_t nonce) : pid_(pid), nonce_at_(at), nonce_(nonce) {}

  /// Tries it: whether its nonce can be read.
  bool can_be_read() const;

  enum class Result : uint8_t {
    kDone,
    kNotThere,  // nothing is at some of these addresses, or reading is not allowed any more
    kGone,      // the process has ended, and may be another by now
  };
  /// Copies from its address `from` to `place` and then, if `word` is not null, what is at
  /// `word_at` to there. Of what is not there, an unspecified part. Whose memory it was is told by
  /// the nonce; with a word by that alone, as no other process has it: each place costs a third of
  /// a microsecond.
  Result read(uint64_t from, void* place, uint64_t bytes, uint64_t word_at = 0,
              uint64_t* word = nullptr) const;

 private:
  int pid_ = 0;
  uint64_t nonce_at_ = 0;
  uint64_t nonce_ = 0;
};

}  // namespace ringcoll

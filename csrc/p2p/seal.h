// A word of this process that peers read. It tells them whether memory that they have copied was
// still lent to them.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringcoll {

/// A random value other than 0, until the seal is broken. The word stays readable until the process
/// ends. The word of a broken seal has another value: 0, or that of a later seal.
class Seal {
 public:
  Seal();
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  uint64_t value() const { return value_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
  /// Changes the value. The caller tells it to the peers. What a peer has copied under the old
  /// value is void, unless the peer had checked the word before the change.
  void renew();
  void break_it();

 private:
  uint64_t value_;
  std::atomic<uint64_t>* word_;
};

}  // namespace ringcoll

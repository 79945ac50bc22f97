// A word that peers read out of this process's memory, to learn whether what they have copied from
// it was still lent to them.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringcoll {

/// A random value, which is not 0, until it is broken. The word stays readable until the process
/// ends, with another value once the seal is broken: 0, or that of a later seal.
class Seal {
 public:
  Seal();
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  uint64_t value() const { return value_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
  /// Another value, which peers have to be told: what they have read under the one before does not
  /// count unless they had looked.
  void renew();
  void break_it();

 private:
  uint64_t value_;
  std::atomic<uint64_t>* word_;
};

}  // namespace ringcoll

// A word that peers read out of this process's memory, to learn whether what they have copied from
// it was still lent to them.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringcoll {

/// Whole until it is broken; its value is no other seal's. The word stays readable until the
/// process ends, with another value once it is broken: 0, or that of a later seal.
class Seal {
 public:
  Seal();
  ~Seal();
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  uint64_t value() const { return value_; }
  uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
  void break_it();

 private:
  const uint64_t value_;
  std::atomic<uint64_t>* word_;
};

}  // namespace ringcoll

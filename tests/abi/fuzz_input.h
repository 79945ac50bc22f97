// What a fuzzed program is made of: numbers and texts out of bytes, and memory between guards.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define FUZZ_UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_UNDER_ASAN 1
#endif
#endif
#ifdef FUZZ_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

#include "ringcoll/ringcoll.h"

namespace fuzz {

[[noreturn]] inline void broken(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: does not hold: %s; last error: %s\n", file, line, what,
               ringcoll_error_message());
  std::abort();
}

/// What the header promises, whatever is passed.
#define HOLDS(condition)                                            \
  do {                                                              \
    if (!(condition)) fuzz::broken(__FILE__, __LINE__, #condition); \
  } while (0)

/// More bytes than a process can address: the library refuses a call of so many.
constexpr int64_t kNoMemory = int64_t{1} << 47;

/// Reads values off an input; 0 where it has ended. It is not LLVM's FuzzedDataProvider, for the
/// corpus is replayed where there is no clang.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  std::span<const uint8_t> take(size_t count) {
    auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  template <typename Value>
  Value raw() {
    Value value{};
    auto from = take(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), from.size());
    return value;
  }
  uint8_t byte() { return raw<uint8_t>(); }
  size_t below(size_t limit) { return byte() % limit; }
  /// One time in `times`, and not once the input has ended.
  bool rarely(size_t times) { return below(times) == times - 1; }
  template <typename Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[below(values.size())];
  }
  /// Small, or none of an enumeration or of a rank.
  int32_t number(int32_t usual) {
    if (!rarely(8)) return static_cast<int32_t>(below(static_cast<size_t>(usual)));
    return rarely(2) ? raw<int32_t>() : static_cast<int32_t>(byte()) - 4;
  }
  /// Elements or bytes: few enough to have memory for, negative, or more than any memory holds.
  int64_t count() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    int64_t chosen = byte() % 65;
    if (rarely(4)) chosen *= 64;
    if (!rarely(8)) return chosen;
    chosen = rarely(2) ? raw<int64_t>()
                       : one_of<int64_t>({-1, -kMost - 1, kMost, kMost / 2 + 1, kMost / 4 + 1,
                                          kMost / 8 + 1, kNoMemory + 1, 0});
    return chosen >= 0 && chosen <= kNoMemory ? chosen % 4096 : chosen;
  }
  double factor() {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (!rarely(4)) return one_of({0.0, 1.0, 0.5, -2.0});
    if (rarely(2)) return raw<double>();
    return one_of({-0.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 1e308,
                   std::numeric_limits<double>::denorm_min()});
  }
  /// What is left, as it is; at times one piece of it many times over.
  std::string text() {
    bool repeats = rarely(8);
    size_t times = repeats ? size_t{1} << below(17) : 1;
    size_t piece = repeats ? 1 + below(8) : rest_.size();
    auto taken = take(piece);
    std::string chunk(taken.begin(), taken.end()), text;
    for (size_t i = 0; i < times; i++) text += chunk;
    auto rest = take(rest_.size());
    return text.append(rest.begin(), rest.end());
  }

 private:
  std::span<const uint8_t> rest_;
};

/// As many bytes as a call may touch. What lies before and behind may be neither read, which the
/// address sanitizer sees, nor written, which is seen without it too.
class Block {
 public:
  Block(size_t bytes, uint8_t fill, size_t shift = 0)
      : shift_(kGuard + shift),
        bytes_(bytes),
        fill_(fill),
        memory_(shift_ + bytes + kGuard, kMark) {
    if (bytes > 0) std::memset(data(), fill, bytes);
    forbid(true);
  }
  Block(const Block&) = delete;
  Block(Block&& other) = delete;
  ~Block() {
    forbid(false);
    auto is_mark = [](uint8_t byte) { return byte == kMark; };
    HOLDS(std::all_of(memory_.begin(), memory_.begin() + shift_, is_mark));
    HOLDS(std::all_of(memory_.end() - kGuard, memory_.end(), is_mark));
    if (!is_read_only_) return;
    for (size_t i = 0; i < bytes_; i++) HOLDS(data()[i] == fill_);
  }

  uint8_t* data() { return memory_.data() + shift_; }
  /// Has the end make sure that nothing was written here.
  void make_read_only() { is_read_only_ = true; }

 private:
  static constexpr ptrdiff_t kGuard = 32;
  static constexpr uint8_t kMark = 0xa5;

  void forbid([[maybe_unused]] bool forbidden) {
#ifdef FUZZ_UNDER_ASAN
    uint8_t* behind = data() + bytes_;
    if (forbidden) {
      __asan_poison_memory_region(memory_.data(), shift_);
      __asan_poison_memory_region(behind, kGuard);
    } else {
      __asan_unpoison_memory_region(memory_.data(), memory_.size());
    }
#endif
  }

  const ptrdiff_t shift_;
  const size_t bytes_;
  const uint8_t fill_;
  bool is_read_only_ = false;
  std::vector<uint8_t> memory_;
};

/// A struct as a caller has it whose header says struct_size: so many bytes, and no more. Of a
/// length that nobody has, the library may read that length alone.
template <typename Struct>
class CallerStruct {
 public:
  CallerStruct(const Struct& fields, Bytes& bytes) {
    size_t size = sizeof(Struct);
    if (bytes.rarely(8))
      size = bytes.rarely(2) ? bytes.raw<size_t>() : bytes.below(sizeof(Struct) + 40);
    size_t there = std::max(sizeof size, size <= kLongest ? size : sizeof(Struct));
    uint8_t beyond = bytes.rarely(8) ? 1 : 0;
    memory_.assign(there, beyond);
    memory_.shrink_to_fit();
    std::memcpy(memory_.data(), &fields, std::min(there, sizeof(Struct)));
    std::memcpy(memory_.data(), &size, sizeof size);
    is_null_ = bytes.rarely(32);
    is_whole_ = size == sizeof(Struct) && !is_null_;
  }
  Struct* get() { return is_null_ ? nullptr : reinterpret_cast<Struct*>(memory_.data()); }
  bool is_whole() const { return is_whole_; }

 private:
  static constexpr size_t kLongest = 4096;
  std::vector<uint8_t> memory_;
  bool is_null_ = false;
  bool is_whole_ = false;
};

}  // namespace fuzz

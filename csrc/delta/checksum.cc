#include "delta/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "base/copy.h"
#include "base/error.h"
#include "delta/xxh3.h"
#include "reduce/stream.h"

namespace ringcoll {
namespace {

uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

Xxh3 choose_xxh3() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return xxh3_avx2;
#endif
  return xxh3;
}

/// Combines the sums of chunks.
class Combined {
 public:
  Combined() : state_(XXH3_createState()) {
    invariant(state_ && XXH3_64bits_reset(state_.get()) == XXH_OK, "no state of XXH3");
  }
  void add(uint64_t sum) {
    static_assert(std::endian::native == std::endian::little);
    XXH3_64bits_update(state_.get(), &sum, sizeof sum);
  }
  uint64_t sum() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

/// Calls visit(offset, bytes) after each chunk has been summed.
template <typename Visit>
uint64_t sum_chunks(const std::byte* data, size_t bytes, Visit&& visit) {
  static const Xxh3 sum_of = choose_xxh3();
  Combined combined;
  for (size_t at = 0; at < bytes; at += kChecksumChunk) {
    const size_t length = std::min(kChecksumChunk, bytes - at);
    combined.add(sum_of(data + at, length));
    visit(at, length);
  }
  return combined.sum();
}

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  return sum_chunks(static_cast<const std::byte*>(data), bytes, [](size_t, size_t) {});
}

uint64_t copy_checksum(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  // A tensor is one of many in a version, which no cache holds until somebody reads it. So stores
  // bypass the caches, unless the tensor is shorter than a chunk.
  const auto copy = bytes >= kChecksumChunk ? stream_bytes : copy_bytes;
  // Summed first: summing waits for memory, and the copy then reads from a cache while its stores
  // drain.
  return sum_chunks(in, bytes, [&](size_t at, size_t length) { copy(out + at, in + at, length); });
}

}  // namespace ringcoll

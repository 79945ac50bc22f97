// Copies. memcpy is what the C library has tuned; measured on AVX-512 machines from 64 to 512 KiB,
// nothing written here was faster (docs/design.md, "Copies"). Only stores that bypass the cache are
// another thing: a destination beyond the caches is not read in before it is overwritten.
#include <algorithm>
#include <cstring>

#include "reduce/reduce.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/copy.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// after foreach_target.h
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// `to` is aligned to a vector. Returns how many bytes it copied; the rest is less than four
/// vectors.
size_t stream(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  if (lanes < 16) return 0;  // no vectors here
  size_t i = 0;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto a = hn::LoadU(d, from + i);
    const auto b = hn::LoadU(d, from + i + lanes);
    const auto c = hn::LoadU(d, from + i + 2 * lanes);
    const auto e = hn::LoadU(d, from + i + 3 * lanes);
    hn::Stream(a, d, to + i);
    hn::Stream(b, d, to + i + lanes);
    hn::Stream(c, d, to + i + 2 * lanes);
    hn::Stream(e, d, to + i + 3 * lanes);
  }
  // A release must not pass the stores that bypass the cache.
  hwy::FlushStream();
  return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(stream);

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

void stream_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  if (to == from || bytes == 0) return;
  auto* out = static_cast<uint8_t*>(to);
  auto* in = static_cast<const uint8_t*>(from);
  size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(out) % kLine);
  std::memcpy(out, in, head);
  size_t done = head + HWY_DYNAMIC_DISPATCH(stream)(out + head, in + head, bytes - head);
  std::memcpy(out + done, in + done, bytes - done);
}

}  // namespace ringcoll
#endif

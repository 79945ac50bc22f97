// Copies of memory that is in no cache (docs/design.md, "Copies"). The caller knows that; the C
// library does not. In the caches its memcpy is as fast as anything here.
#include "reduce/stream.h"

#include <algorithm>
#include <cstring>

#include "base/copy.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/stream.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// must come after foreach_target.h
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

struct Keep {
  template <class D, class V>
  static HWY_INLINE void store(D d, V bytes, uint8_t* to) {
    hn::StoreU(bytes, d, to);
  }
};
/// `to` must be aligned to a vector.
struct PastCaches {
  template <class D, class V>
  static HWY_INLINE void store(D d, V bytes, uint8_t* to) {
    hn::Stream(bytes, d, to);
  }
};

template <class Store, class D>
HWY_INLINE void copy_line(D d, uint8_t* to, const uint8_t* from) {
  for (size_t at = 0; at < kLine; at += hn::Lanes(d))
    Store::store(d, hn::LoadU(d, from + at), to + at);
}

/// Copies from kPages pages side by side. Returns how many bytes it has copied; less than a line is
/// left over, or all of it where there are no vectors.
template <class Store, size_t kPages>
size_t copy_lines(uint8_t* to, const uint8_t* from, size_t bytes) {
  const hn::CappedTag<uint8_t, kLine> d;
  if (hn::Lanes(d) < 16) return 0;  // this target has no vectors
  size_t done = 0;
  for (; done + kPages * kPage <= bytes; done += kPages * kPage)
    for (size_t line = 0; line < kPage; line += kLine)
      for (size_t page = 0; page < kPages * kPage; page += kPage)
        copy_line<Store>(d, to + done + page + line, from + done + page + line);
  for (; done + kLine <= bytes; done += kLine) copy_line<Store>(d, to + done, from + done);
  return done;
}

size_t fetch(uint8_t* to, const uint8_t* from, size_t bytes) {
  return copy_lines<Keep, 4>(to, from, bytes);
}

size_t stream(uint8_t* to, const uint8_t* from, size_t bytes) {
  // Two pages and not four: some processors gather such stores for few pages at a time. With more
  // pages they write lines in pieces, three times as slowly (AMD family 25, model 1).
  size_t done = copy_lines<PastCaches, 2>(to, from, bytes);
  // Stores that bypass the caches are weakly ordered; a later release must not overtake them.
  hwy::FlushStream();
  return done;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(fetch);
HWY_EXPORT(stream);

void fetch_bytes(void* to, const void* from, size_t bytes) {
  if (to == from || bytes == 0) return;
  // The data goes through a block in the first-level cache. memcpy then writes it to `to`, as it
  // writes well to lines that are in another core's cache.
  constexpr size_t kFourPages = 4 * 4096;
  alignas(64) uint8_t block[kFourPages];
  auto* out = static_cast<uint8_t*>(to);
  auto* in = static_cast<const uint8_t*>(from);
  size_t done = 0;
  for (; done + kFourPages <= bytes; done += kFourPages) {
    if (HWY_DYNAMIC_DISPATCH(fetch)(block, in + done, kFourPages) < kFourPages) break;
    copy_bytes(out + done, block, kFourPages);
  }
  copy_bytes(out + done, in + done, bytes - done);
}

void stream_bytes(void* to, const void* from, size_t bytes) {
  constexpr size_t kAlignment = 64;
  if (to == from || bytes == 0) return;
  auto* out = static_cast<uint8_t*>(to);
  auto* in = static_cast<const uint8_t*>(from);
  size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(out) % kAlignment);
  std::memcpy(out, in, head);
  size_t done = head + HWY_DYNAMIC_DISPATCH(stream)(out + head, in + head, bytes - head);
  std::memcpy(out + done, in + done, bytes - done);
}

}  // namespace ringcoll
#endif

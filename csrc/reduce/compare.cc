// Comparison runs at the speed of memory where at most a few hundredths of the elements differ.
#include "reduce/compare.h"

#include <bit>
#include <cstring>

#include "base/error.h"
#include "reduce/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/compare.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef RINGCOLL_REDUCE_COMPARE_KERNELS_
#define RINGCOLL_REDUCE_COMPARE_KERNELS_
namespace ringcoll {
namespace {
using FindKernel = size_t (*)(const void* before, const void* now, size_t count, size_t most,
                              uint16_t* indices, void* values);
using CountKernel = size_t (*)(const void* before, const void* now, size_t count);
}  // namespace
}  // namespace ringcoll
#endif

HWY_BEFORE_NAMESPACE();
namespace ringcoll {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

/// The elements that one word has a bit for.
constexpr size_t kWord = 64;
/// How many changes of a word are written whether they are there or not. With 1 % of the elements
/// changed, a branch for each change would be predicted wrongly too often.
constexpr size_t kUnasked = 2;
/// Further changes of a word are written in groups of so many.
constexpr size_t kGroup = 8;
static_assert(kWord + kGroup <= kChangedBeyond);

/// Bit i is set if element i of kWord elements differs.
template <typename T, class D>
HWY_INLINE uint64_t changed_bits(D d, const T* before, const T* now) {
  const size_t lanes = hn::Lanes(d);
  uint64_t bits = 0;
  for (size_t at = 0; at < kWord; at += lanes) {
    uint8_t stored[8] = {};
    hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, before + at), hn::LoadU(d, now + at)), stored);
    uint64_t some;
    std::memcpy(&some, stored, sizeof some);
    bits |= some << at;
  }
  return bits;
}

/// The same for fewer than kWord elements.
template <typename T>
uint64_t changed_bits_of_tail(const T* before, const T* now, size_t count) {
  uint64_t bits = 0;
  for (size_t i = 0; i < count; i++)
    if (std::memcmp(before + i, now + i, sizeof(T)) != 0) bits |= uint64_t{1} << i;
  return bits;
}

/// Writes the next kCount changes of a word and returns the other bits. If there are fewer, it
/// writes element 0 in their place.
template <size_t kCount, typename T>
HWY_INLINE uint64_t put(uint64_t bits, const T* now, size_t first, uint16_t* indices, T* values) {
  for (size_t i = 0; i < kCount; i++) {
    const size_t at = static_cast<size_t>(std::countr_zero(bits)) % kWord;
    indices[i] = static_cast<uint16_t>(first + at);
    std::memcpy(values + i, now + at, sizeof(T));
    bits &= bits - 1;
  }
  return bits;
}

/// Writes the changes of the word that begins at element `first` of the block; `now` is that
/// element. Returns how many there are.
template <typename T>
HWY_INLINE size_t put_all(uint64_t bits, const T* now, size_t first, uint16_t* indices, T* values) {
  const auto count = static_cast<size_t>(std::popcount(bits));
  bits = put<kUnasked>(bits, now, first, indices, values);
  for (size_t i = kUnasked; HWY_UNLIKELY(i < count); i += kGroup)
    bits = put<kGroup>(bits, now, first, indices + i, values + i);
  return count;
}

template <typename T>
size_t find(const void* before_bytes, const void* now_bytes, size_t count, size_t most,
            uint16_t* indices, void* values_bytes) {
  const auto* before = static_cast<const T*>(before_bytes);
  const auto* now = static_cast<const T*>(now_bytes);
  auto* values = static_cast<T*>(values_bytes);
  const hn::CappedTag<T, kWord> d;
  const size_t tail = count % kWord;
  size_t found = 0, i = 0;
  for (; i < count - tail && found <= most; i += kWord)
    found +=
        put_all(changed_bits(d, before + i, now + i), now + i, i, indices + found, values + found);
  if (tail > 0 && found <= most)
    found += put_all(changed_bits_of_tail(before + i, now + i, tail), now + i, i, indices + found,
                     values + found);
  return found;
}

template <typename T>
size_t count_all(const void* before_bytes, const void* now_bytes, size_t count) {
  const auto* before = static_cast<const T*>(before_bytes);
  const auto* now = static_cast<const T*>(now_bytes);
  const hn::CappedTag<T, kWord> d;
  const size_t tail = count % kWord;
  size_t found = 0, i = 0;
  for (; i < count - tail; i += kWord)
    found += static_cast<size_t>(std::popcount(changed_bits(d, before + i, now + i)));
  const uint64_t last = changed_bits_of_tail(before + i, now + i, tail);
  return found + static_cast<size_t>(std::popcount(last));
}

FindKernel choose_find(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return find<uint8_t>;
    case 2:
      return find<uint16_t>;
    case 4:
      return find<uint32_t>;
    default:
      return find<uint64_t>;
  }
}

CountKernel choose_count(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return count_all<uint8_t>;
    case 2:
      return count_all<uint16_t>;
    case 4:
      return count_all<uint32_t>;
    default:
      return count_all<uint64_t>;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ringcoll
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ringcoll {

HWY_EXPORT(choose_find);
HWY_EXPORT(choose_count);

bool can_compare(size_t element_bytes) {
  return std::has_single_bit(element_bytes) && element_bytes <= sizeof(uint64_t);
}

size_t find_changed(const void* before, const void* now, size_t count, size_t element_bytes,
                    size_t most, uint16_t* indices, void* values) {
  invariant(can_compare(element_bytes) && count <= kComparedAtOnce, "{} elements of {} bytes",
            count, element_bytes);
  return HWY_DYNAMIC_DISPATCH(choose_find)(element_bytes)(before, now, count, most, indices,
                                                          values);
}

size_t count_changed(const void* before, const void* now, size_t count, size_t element_bytes) {
  invariant(can_compare(element_bytes), "elements of {} bytes", element_bytes);
  return HWY_DYNAMIC_DISPATCH(choose_count)(element_bytes)(before, now, count);
}

}  // namespace ringcoll
#endif

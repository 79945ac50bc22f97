// see the header
#include "fuzz_deltas.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace fuzz {
namespace {

constexpr size_t kMostBytes = 4096;
/// No delta of such a tensor is longer than the tensor by more.
constexpr size_t kBound = 64;
/// Of a delta: the checksum of all bytes behind it.
constexpr size_t kSum = sizeof(uint64_t);

uint64_t sum_of(const uint8_t* data, size_t bytes) {
  uint64_t sum = 0;
  HOLDS(ringcoll_checksum(data, bytes, &sum) == RC_OK);
  return sum;
}

/// Overwrites, cuts or extends the delta. Often its checksum is made right again, for otherwise no
/// change would get past it.
std::vector<uint8_t> changed(std::vector<uint8_t> delta, Bytes& bytes) {
  for (size_t i = bytes.below(4); i > 0 && !delta.empty(); i--)
    delta[bytes.raw<uint16_t>() % delta.size()] = bytes.byte();
  if (bytes.rarely(4)) delta.resize(bytes.raw<uint16_t>() % (delta.size() + 16));
  if (bytes.rarely(8)) {
    std::string text = bytes.text();
    delta.assign(text.begin(), text.end());
  }
  if (delta.size() > kSum && !bytes.rarely(4)) {
    uint64_t sum = sum_of(delta.data() + kSum, delta.size() - kSum);
    std::memcpy(delta.data(), &sum, sizeof sum);
  }
  return delta;
}

/// A refused delta leaves the tensor as it was; blocks notice what is written beside it.
void apply(const std::vector<uint8_t>& delta, const std::vector<uint8_t>& before, size_t shift) {
  Block tensor(before.size(), 0, shift), guarded(delta.size(), 0, shift);
  std::copy(before.begin(), before.end(), tensor.data());
  std::copy(delta.begin(), delta.end(), guarded.data());
  rc_status status =
      ringcoll_delta_apply(tensor.data(), before.size(), guarded.data(), delta.size());
  HOLDS(status == RC_OK || status == RC_INVALID_ARGUMENT);
  HOLDS(status == RC_OK || *ringcoll_error_message());
  HOLDS(status == RC_OK || std::equal(before.begin(), before.end(), tensor.data()));
}

void copy_and_sum(const std::vector<uint8_t>& data, size_t shift) {
  Block to(data.size(), 0, shift);
  uint64_t sum = 0;
  HOLDS(ringcoll_copy_checksum(to.data(), data.data(), data.size(), &sum) == RC_OK);
  HOLDS(std::equal(data.begin(), data.end(), to.data()));
  HOLDS(sum == sum_of(data.data(), data.size()));
}

/// Two versions of a tensor, and how they are passed.
struct Versions {
  int width;
  size_t shift;
  std::vector<uint8_t> before;
  std::vector<uint8_t> now;

  size_t bytes() const { return now.size(); }
  bool may_be_compared() const {
    bool is_width = width == 1 || width == 2 || width == 4 || width == 8;
    return is_width && bytes() % static_cast<size_t>(width) == 0;
  }
};

Versions versions(Bytes& bytes) {
  int width = bytes.rarely(8) ? bytes.number(9) : 1 << bytes.below(4);
  size_t length = bytes.raw<uint16_t>() % kMostBytes, shift = bytes.below(8);
  if (!bytes.rarely(8)) length -= length % 8;
  std::vector<uint8_t> before(length, 7), now = before;
  for (size_t i = bytes.below(16); i > 0 && length > 0; i--)
    now[bytes.raw<uint16_t>() % length] ^= bytes.byte();
  if (bytes.rarely(4)) std::fill_n(now.begin(), bytes.raw<uint16_t>() % (length + 1), bytes.byte());
  return {width, shift, std::move(before), std::move(now)};
}

/// The delta; empty if it does not fit or is refused.
std::vector<uint8_t> make(const Versions& of, size_t capacity) {
  Block out(capacity, 0, of.shift);
  size_t made = 1;
  rc_status status = ringcoll_delta_make(of.before.data(), of.now.data(), of.bytes(), of.width,
                                         out.data(), capacity, &made);
  HOLDS((status == RC_INVALID_ARGUMENT) == !of.may_be_compared());
  HOLDS(status == RC_OK || status == RC_INVALID_ARGUMENT || status == RC_TOO_LONG);
  HOLDS(status != RC_TOO_LONG || capacity < of.bytes() + kBound);
  HOLDS(status == RC_OK ? made <= capacity : made == 0);
  return {out.data(), out.data() + made};
}

}  // namespace

void play_delta(Bytes& bytes) {
  Versions of = versions(bytes);
  bool has_room = !bytes.rarely(4);
  size_t capacity = has_room ? of.bytes() + kBound : bytes.raw<uint16_t>() % (2 * kMostBytes);
  copy_and_sum(of.now, of.shift);
  std::vector<uint8_t> delta = make(of, capacity), tensor = of.before;
  if (delta.empty()) return;
  HOLDS(ringcoll_delta_apply(tensor.data(), tensor.size(), delta.data(), delta.size()) == RC_OK);
  HOLDS(tensor == of.now);
  apply(changed(std::move(delta), bytes), of.before, of.shift);
}

}  // namespace fuzz

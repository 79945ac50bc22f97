// The C ABI of deltas and checksums.
#include "delta/checksum.h"
#include "delta/delta.h"
#include "engine/guarded.h"

using namespace ringcoll;

namespace {

void check_memory(const void* memory, size_t bytes, const char* name) {
  check(memory != nullptr || bytes == 0, Code::kInvalidArgument, "{} is NULL, and has {} bytes",
        name, bytes);
}

template <typename Number>
void begin_with_zero(Number* place, const char* name) {
  check(place != nullptr, Code::kInvalidArgument, "{} is NULL", name);
  *place = 0;
}

}  // namespace

extern "C" {

rc_status ringcoll_delta_make(const void* before, const void* now, size_t bytes, int element_bytes,
                              void* out, size_t capacity, size_t* length) {
  return guarded([&] {
    begin_with_zero(length, "length");
    check_memory(before, bytes, "before");
    check_memory(now, bytes, "now");
    check_memory(out, capacity, "out");
    check(element_bytes > 0, Code::kInvalidArgument, "element_bytes is {}: it is 1, 2, 4 or 8",
          element_bytes);
    auto made = make_delta(before, now, bytes, static_cast<size_t>(element_bytes), out, capacity);
    check(made.has_value(), Code::kTooLong,
          "the delta is longer than {} bytes: give it more room, or take the whole tensor, of {} "
          "bytes",
          capacity, bytes);
    *length = *made;
  });
}

rc_status ringcoll_delta_apply(void* tensor, size_t bytes, const void* delta, size_t length) {
  return guarded([&] {
    check_memory(tensor, bytes, "tensor");
    check_memory(delta, length, "delta");
    apply_delta(tensor, bytes, delta, length);
  });
}

rc_status ringcoll_checksum(const void* data, size_t bytes, uint64_t* sum) {
  return guarded([&] {
    begin_with_zero(sum, "sum");
    check_memory(data, bytes, "data");
    *sum = checksum(data, bytes);
  });
}

rc_status ringcoll_copy_checksum(void* to, const void* from, size_t bytes, uint64_t* sum) {
  return guarded([&] {
    begin_with_zero(sum, "sum");
    check_memory(to, bytes, "to");
    check_memory(from, bytes, "from");
    *sum = copy_checksum(to, from, bytes);
  });
}

}  // extern "C"

// see the header
#include "fuzz_rules.h"

#include <array>
#include <deque>
#include <string>
#include <vector>

namespace fuzz {
namespace {

constexpr size_t kMostCount = 100;

/// How a row is passed. Where the rule does not take it so, the call has to be refused.
struct Given {
  rc_dtype dtype;
  rc_dtype push_dtype;
  size_t count;
  size_t slots;
  size_t shift;
  double weight;
};

Given given(Bytes& bytes) {
  auto dtype = static_cast<rc_dtype>(bytes.below(16));
  if (!bytes.rarely(4)) dtype = bytes.one_of({RC_FLOAT16, RC_BFLOAT16, RC_FLOAT32, RC_FLOAT64});
  const rc_dtype push_dtype = bytes.rarely(4) ? RC_FLOAT32 : dtype;
  return {dtype,          push_dtype,     bytes.below(kMostCount),
          bytes.below(3), bytes.below(8), bytes.rarely(4) ? bytes.factor() : 1};
}

/// Of an element; of no type as many as of the widest.
size_t bytes_of(rc_dtype dtype) {
  constexpr std::array<size_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};
  return dtype < kBytes.size() ? kBytes[dtype] : 8;
}

void apply(const std::string& rule, const Given& as, uint8_t fill) {
  Block value(as.count * bytes_of(as.dtype), fill, as.shift);
  Block push(as.count * bytes_of(as.push_dtype), fill, as.shift);
  push.make_read_only();
  const size_t state_bytes = as.dtype == RC_FLOAT64 ? 8 : 4;
  std::deque<Block> state;
  std::vector<void*> places;
  for (size_t i = 0; i < as.slots; i++)
    places.push_back(state.emplace_back(as.count * state_bytes, uint8_t{0}, as.shift).data());
  int64_t pushes = 0;
  double weights = 0;
  for (int i = 0; i < 2; i++) {
    const int64_t before = pushes;
    const rc_status status = ringcoll_rule_apply(
        rule.c_str(), as.dtype, static_cast<int64_t>(as.count), value.data(), places.data(),
        as.slots, &pushes, &weights, as.push_dtype, push.data(), as.weight);
    HOLDS(status == RC_OK || status == RC_INVALID_ARGUMENT);
    HOLDS(status == RC_OK || *ringcoll_error_message());
    HOLDS(pushes == before + (status == RC_OK));
  }
}

}  // namespace

void play_rule(Bytes& bytes) {
  const Given as = given(bytes);
  const uint8_t fill = bytes.byte();
  std::string rule = bytes.text();
  std::erase(rule, '\0');
  char before = 0, *json = &before;
  const rc_status status = ringcoll_rule_check(rule.c_str(), &json);
  HOLDS(status == RC_OK ? json != nullptr && *json == '{' : json == nullptr);
  HOLDS(status == RC_OK || status == RC_INVALID_ARGUMENT);
  apply(rule, as, fill);
  ringcoll_free(json);
}

}  // namespace fuzz

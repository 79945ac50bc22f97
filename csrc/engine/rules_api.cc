// The C ABI of rules.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/guarded.h"
#include "engine/handles.h"
#include "rules/float_environment.h"
#include "rules/rule.h"

using namespace ringcoll;

namespace {

Rule parsed(const char* rule) {
  check(rule != nullptr, Code::kInvalidArgument, "rule is NULL");
  return Rule::parse(rule);
}

void check_type(rc_dtype dtype, const char* name) {
  check(static_cast<size_t>(dtype) < RC_DTYPE_COUNT, Code::kInvalidArgument,
        "{} is {}: there is no such type", name, static_cast<int>(dtype));
}

void check_array(const void* memory, int64_t count, const char* name) {
  check(memory != nullptr || count == 0, Code::kInvalidArgument, "{} is NULL, and has {} elements",
        name, count);
}

}  // namespace

extern "C" {

rc_status ringcoll_rule_check(const char* rule, char** json) {
  return guarded([&] {
    check(json != nullptr, Code::kInvalidArgument, "json is NULL");
    *json = nullptr;
    const Rule checked = parsed(rule);
    const nlohmann::ordered_json described = {
        {"rule", nlohmann::ordered_json::parse(checked.json())},
        {"state_slots", checked.state_slots()}};
    *json = copy_of(described.dump());
  });
}

rc_status ringcoll_rule_apply(const char* rule, rc_dtype dtype, int64_t count, void* value,
                              void* const* state, size_t state_slots, int64_t* pushes,
                              double* weight_sum, rc_dtype push_dtype, const void* push,
                              double weight) {
  return guarded([&] {
    const Rule checked = parsed(rule);
    check_type(dtype, "dtype");
    check_type(push_dtype, "push_dtype");
    check(count >= 0, Code::kInvalidArgument, "count is {}: it must be at least 0", count);
    check_array(value, count, "value");
    check_array(push, count, "push");
    check(pushes && weight_sum && *pushes >= 0, Code::kInvalidArgument,
          "pushes or weight_sum is NULL, or *pushes is below 0");
    check(state_slots == checked.state_slots() && (state != nullptr || state_slots == 0),
          Code::kInvalidArgument, "state has {} arrays: the rule {} has {}",
          state != nullptr ? state_slots : 0, checked.name(), checked.state_slots());
    RowTally tally{*pushes, *weight_sum};
    Row row{.value = value, .count = count, .tally = &tally};
    for (size_t i = 0; i < state_slots; i++) {
      check_array(state[i], count, "an array of state");
      row.state[i] = state[i];
    }
    const FloatEnvironment environment;
    checked.apply(dtype, row, {push_dtype, push, weight});
    *pushes = tally.pushes;
    *weight_sum = tally.weight;
  });
}

}  // extern "C"

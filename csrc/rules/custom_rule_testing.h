// A custom rule of C++. For tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "rules/custom_rule.h"

namespace ringcoll::testing {

/// Adds the push to a float32 value as often as the rule was called before, and 1 more time. It
/// throws if the first element of the push is below 0, for as long as `throws_left` is not 0.
class Counting final : public CustomRule {
 public:
  static constexpr const char* kMaker = "counting";
  static inline std::atomic<int> throws_left = -1;

  /// Makes rules in this process, from the number of calls as text.
  static void install() {
    set_rule_maker(kMaker, [](std::string_view data) {
      check(!data.empty() && data != "bad", Code::kInvalidArgument, "counting: {} is no number",
            data);
      return std::make_unique<Counting>(std::stoi(std::string(data)));
    });
  }
  static std::string json(int calls = 0) {
    return Rule(rules::Custom{.maker = kMaker, .data = std::to_string(calls)}).json();
  }

  explicit Counting(int calls) : calls_(calls) {}
  void apply(int64_t, DataType, void* value, int64_t count, DataType, const void* push) override {
    auto* values = static_cast<float*>(value);
    const auto* pushed = static_cast<const float*>(push);
    calls_++;
    for (int64_t i = 0; i < count; i++) values[i] += static_cast<float>(calls_) * pushed[i];
    check(pushed[0] >= 0 || throws_left-- == 0, Code::kInvalidArgument, "the push is {}",
          pushed[0]);
  }
  std::string save() override { return std::to_string(calls_); }

 private:
  int calls_;
};

}  // namespace ringcoll::testing

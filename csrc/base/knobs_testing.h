// Knobs in tests: environments, and a value for any row.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/knobs.h"

namespace ringcoll {

/// GoogleTest's, for a row that is the parameter of a test.
inline void PrintTo(const KnobRow& row, std::ostream* out) { *out << row.name; }

}  // namespace ringcoll

namespace ringcoll::testing {

/// In which these variables are set, and no others.
inline Getenv environment_of(std::map<std::string, std::string> variables) {
  return [kept = std::move(variables)](const char* name) {
    auto found = kept.find(name);
    return found == kept.end() ? nullptr : found->second.c_str();
  };
}

/// One that the row takes, and not its default.
inline std::string another_value(const KnobRow& row) {
  Config config = KnobTable({row}).read(environment_of({}));
  return std::visit(
      [&](const auto& kind) -> std::string {
        const auto& value = config.*kind.field;
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          return value ? "0" : "1";
        } else if constexpr (std::is_same_v<Value, std::string>) {
          for (const std::string& word : kind.allowed)
            if (word != value) return word;
          return "other";
        } else {
          return std::to_string(value + 1 <= kind.most ? value + 1 : value - 1);
        }
      },
      row.kind);
}

}  // namespace ringcoll::testing

// Rules that the library does not have: those of programs, which run in their servers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/types.h"
#include "rules/rule.h"

namespace ringcoll {

/// It may have state of its own. Copies of it must do the same if they are called the same way,
/// since they apply the same pushes to copies of the same rows.
class CustomRule {
 public:
  CustomRule() = default;
  virtual ~CustomRule() = default;
  CustomRule(const CustomRule&) = delete;
  CustomRule& operator=(const CustomRule&) = delete;

  /// Changes the value of a row by a push of as many elements. Throws Error; the value is then
  /// unspecified.
  virtual void apply(int64_t id, DataType dtype, void* value, int64_t count, DataType push_dtype,
                     const void* push) = 0;
  /// What its maker makes an equal rule of. Throws Error.
  virtual std::string save() = 0;
};

/// Makes a rule of rules::Custom::data or of what save() has returned. Throws Error.
using MakeCustomRule = std::function<std::unique_ptr<CustomRule>(std::string_view data)>;

/// From now on this process makes the rules of a maker so. Any thread.
void set_rule_maker(const std::string& maker, MakeCustomRule make);
/// Throws Error(kInvalidArgument) if this process does not have the maker, and what that throws.
std::unique_ptr<CustomRule> make_custom_rule(const std::string& maker, std::string_view data);

}  // namespace ringcoll

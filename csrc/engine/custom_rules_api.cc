// The C ABI of rules that programs bring along (ringcoll/tables.h).
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "engine/guarded.h"
#include "ringcoll/tables.h"
#include "rules/custom_rule.h"

using namespace ringcoll;

namespace {

struct Functions {
  rc_rule_make_fn make;
  rc_rule_apply_fn apply;
  rc_rule_save_fn save;
  rc_rule_drop_fn drop;
  void* state;
};

/// Calls a function of the program with room for the text of an error, and throws its error.
template <typename Function>
void ask(Function&& function) {
  std::array<char, RC_RULE_ERROR_ROOM> text{};
  const rc_status status = function(text.data());
  if (status == RC_OK) return;
  text.back() = '\0';
  const bool is_known = status >= RC_INVALID_ARGUMENT && status <= RC_REFUSED;
  throw Error(is_known ? static_cast<Code>(status) : Code::kInvalidArgument,
              std::string("rule custom: ") + (text[0] ? text.data() : "it has failed"));
}

class ProgramsRule final : public CustomRule {
 public:
  ProgramsRule(const Functions& functions, std::string_view data) : functions_(functions) {
    ask([&](char* error) {
      return functions_.make(functions_.state, data.data(), data.size(), &rule_, error);
    });
  }
  ~ProgramsRule() override { functions_.drop(rule_); }
  ProgramsRule(const ProgramsRule&) = delete;
  ProgramsRule& operator=(const ProgramsRule&) = delete;

  void apply(int64_t id, DataType dtype, void* value, int64_t count, DataType push_dtype,
             const void* push) override {
    ask([&](char* error) {
      return functions_.apply(rule_, id, dtype, value, count, push_dtype, push, error);
    });
  }

  std::string save() override {
    char* data = nullptr;
    size_t bytes = 0;
    ask([&](char* error) { return functions_.save(rule_, &data, &bytes, error); });
    const std::unique_ptr<char, void (*)(void*)> freed(data, std::free);
    return {data, bytes};
  }

 private:
  const Functions functions_;
  void* rule_ = nullptr;
};

}  // namespace

extern "C" {

rc_status ringcoll_table_rules(const char* maker, rc_rule_make_fn make, rc_rule_apply_fn apply,
                               rc_rule_save_fn save, rc_rule_drop_fn drop, void* state) {
  return guarded([&] {
    check(maker != nullptr && *maker, Code::kInvalidArgument, "maker is NULL, or empty");
    check(make && apply && save && drop, Code::kInvalidArgument,
          "one of the functions of the maker {} is NULL", maker);
    const Functions functions{make, apply, save, drop, state};
    set_rule_maker(maker, [functions](std::string_view data) {
      return std::make_unique<ProgramsRule>(functions, data);
    });
  });
}

}  // extern "C"

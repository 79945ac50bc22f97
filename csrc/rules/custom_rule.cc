#include "rules/custom_rule.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace ringcoll {
namespace {

struct Makers {
  std::mutex mutex;
  std::map<std::string, MakeCustomRule> makers;
};

// Never destroyed, since threads of servers may outlive main().
Makers& all() {
  static Makers& made = *new Makers;
  return made;
}

}  // namespace

void set_rule_maker(const std::string& maker, MakeCustomRule make) {
  const std::lock_guard lock(all().mutex);
  all().makers[maker] = std::move(make);
}

std::unique_ptr<CustomRule> make_custom_rule(const std::string& maker, std::string_view data) {
  MakeCustomRule make;
  {
    const std::lock_guard lock(all().mutex);
    if (const auto found = all().makers.find(maker); found != all().makers.end())
      make = found->second;
  }
  check(make != nullptr, Code::kInvalidArgument,
        "rule custom: maker is \"{}\", and this process has none of that name", maker);
  return make(data);
}

}  // namespace ringcoll

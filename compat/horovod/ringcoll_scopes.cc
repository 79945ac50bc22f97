#include "ringcoll_scopes.h"

#include "ringcoll_job.h"

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

RingcollScopes& RingcollScopes::Get() {
  static RingcollScopes& scopes = *new RingcollScopes();
  return scopes;
}

void RingcollScopes::BeginLife(bool elastic) {
  if (elastic) meetings_.clear();
}

std::string RingcollScopes::Next(const std::string& prefix) {
  return prefix + "_" + framework() + "_" + std::to_string(meetings_[prefix]++);
}

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

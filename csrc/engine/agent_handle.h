// The handle of an agent, for those parts of the C ABI that use one.
#pragma once

#include <memory>
#include <string>

#include "base/fork.h"
#include "remote/agent.h"
#include "ringcoll/remote.h"

struct rc_agent {
  std::shared_ptr<ringcoll::remote::Agent> agent;
  double timeout_s = 0;
  std::string leaf;  // names of the switches above this host, from the top down; empty: unknown
  int born = ringcoll::fork_number();
};

namespace ringcoll {

/// The agent of a caller's handle. Throws Error(kInvalidArgument) for NULL, and in a forked child.
const std::shared_ptr<remote::Agent>& shared_agent_of(const rc_agent* agent);

}  // namespace ringcoll

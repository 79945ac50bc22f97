// What a process needs to know of a region that another one owns: who owns it, how to reach the
// owner, and a secret that proves that the owner gave this out. It says nothing of where the bytes
// lie: that is looked up at the owner (remote/control.h), so a forged handle leads nowhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/address.h"

namespace ringcoll::remote {

/// An agent admits at a door whoever proves to know its key (connect/auth.h).
struct Door {
  std::string name;
  std::vector<Address> addresses;  // that listen; those of the fastest networks first

  bool operator==(const Door& other) const;
};

/// How to reach an agent.
struct AgentFacts {
  uint64_t id = 0;     // random; no other agent has it
  uint64_t stack = 0;  // own_stack()
  uint64_t host = 0;   // own_host()
  int32_t pid = 0;     // in the PID namespace of the agent
  int32_t control_fd = -1;
  uint64_t control_inode = 0;
  std::vector<Door> doors;
};

struct RegionHandle {
  AgentFacts owner;
  uint32_t index = 0;   // among the owner's regions
  uint64_t secret = 0;  // never 0
  uint64_t bytes = 0;
  bool writable = false;
};

inline constexpr size_t kLongestHandle = 1024;
inline constexpr size_t kLongestName = 128;
inline constexpr size_t kMostDoors = 4;
inline constexpr size_t kMostAddresses = 8;

/// Bytes that may be sent anywhere, kLongestHandle at most.
std::string encode(const RegionHandle& handle);
/// Throws Error(kInvalidArgument) if `bytes` is not what encode() has returned.
RegionHandle decode(std::string_view bytes);

/// Proves to another process of the host, by the control memory, that one knows the key of a door.
/// Never 0.
uint64_t proof_of(uint64_t agent, const std::string& door, const std::string& key);

/// The same for the facts alone, as a part of other messages.
std::string encode(const AgentFacts& facts);
AgentFacts decode_facts(std::string_view bytes);

/// Equal for processes of one machine and network namespace: they reach one another by loopback.
uint64_t own_stack();
/// Equal for processes of one machine that give the same `name` to their host: they may map one
/// another's memory.
uint64_t own_host(const std::string& name);

}  // namespace ringcoll::remote

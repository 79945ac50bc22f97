#include "remote/handle.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "connect/auth.h"
#include "net/wire.h"

namespace ringcoll::remote {
namespace {

constexpr uint32_t kMagic = 0x31484352;  // "RCH1": the last character is the version

// Finds damage, such as a handle that was cut short or sent as text. The secret is what proves that
// a handle is genuine.
uint32_t sum_of(std::string_view bytes) {
  uint32_t sum = 2166136261;  // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
  for (char byte : bytes) sum = (sum ^ static_cast<uint8_t>(byte)) * 16777619;
  return sum;
}

uint64_t hash_of(const std::string& text) {
  GroupId whole = make_group_id(text);
  uint64_t hash;
  std::memcpy(&hash, whole.data(), sizeof hash);
  return hash;
}

void put(WireWriter& out, const AgentFacts& facts) {
  out.put(facts.id);
  out.put(facts.stack);
  out.put(facts.host);
  out.put(facts.pid);
  out.put(facts.control_fd);
  out.put(facts.control_inode);
  out.put(static_cast<uint8_t>(facts.doors.size()));
  for (const Door& door : facts.doors) {
    out.put_text(door.name);
    out.put(static_cast<uint8_t>(door.addresses.size()));
    for (const Address& address : door.addresses) out.put_text(address.text());
  }
}

Door get_door(WireReader& in) {
  Door door{.name = in.get_text(kLongestName), .addresses = {}};
  auto count = in.get<uint8_t>();
  check(count <= kMostAddresses, Code::kTransport, "a door has {} addresses", count);
  for (int i = 0; i < count; i++) door.addresses.push_back(Address::parse(in.get_text(128)));
  return door;
}

AgentFacts get_facts(WireReader& in) {
  AgentFacts facts;
  facts.id = in.get<uint64_t>();
  facts.stack = in.get<uint64_t>();
  facts.host = in.get<uint64_t>();
  facts.pid = in.get<int32_t>();
  facts.control_fd = in.get<int32_t>();
  facts.control_inode = in.get<uint64_t>();
  auto count = in.get<uint8_t>();
  check(count <= kMostDoors, Code::kTransport, "an agent has {} doors", count);
  for (int i = 0; i < count; i++) facts.doors.push_back(get_door(in));
  return facts;
}

}  // namespace

bool Door::operator==(const Door& other) const {
  auto same = [](const Address& a, const Address& b) { return a.text() == b.text(); };
  return name == other.name && std::ranges::equal(addresses, other.addresses, same);
}

std::string encode(const AgentFacts& facts) {
  WireWriter out;
  put(out, facts);
  return out.take();
}

AgentFacts decode_facts(std::string_view bytes) {
  WireReader in(bytes, "the facts of an agent");
  AgentFacts facts = get_facts(in);
  in.finish();
  return facts;
}

std::string encode(const RegionHandle& handle) {
  WireWriter out;
  out.put(handle.index);
  out.put(handle.secret);
  out.put(handle.bytes);
  out.put(static_cast<uint8_t>(handle.writable));
  put(out, handle.owner);
  std::string body = out.take();
  WireWriter head;
  head.put(kMagic);
  head.put(sum_of(body));
  std::string bytes = head.take() + body;
  check(bytes.size() <= kLongestHandle, Code::kInvalidArgument,
        "the handle of a region would have {} bytes, more than {}: give the store or the guests "
        "fewer or shorter names",
        bytes.size(), kLongestHandle);
  return bytes;
}

RegionHandle decode(std::string_view bytes) {
  try {
    WireReader in(bytes, "the handle of a region");
    check(in.get<uint32_t>() == kMagic, Code::kTransport, "it does not begin as one");
    auto sum = in.get<uint32_t>();
    check(sum == sum_of(bytes.substr(8)), Code::kTransport, "its checksum is wrong");
    RegionHandle handle;
    handle.index = in.get<uint32_t>();
    handle.secret = in.get<uint64_t>();
    handle.bytes = in.get<uint64_t>();
    handle.writable = in.get<uint8_t>() != 0;
    handle.owner = get_facts(in);
    in.finish();
    return handle;
  } catch (const Error& error) {
    throw Error(Code::kInvalidArgument,
                fmt::format("{} bytes are no handle of a region, or were damaged on the way ({}): "
                            "pass what Region.handle() has returned, as bytes",
                            bytes.size(), error.what()));
  }
}

uint64_t proof_of(uint64_t agent, const std::string& door, const std::string& key) {
  return hash_of(derive_secret(key, fmt::format("ringcoll host {:x} {}", agent, door))) | 1;
}

uint64_t own_stack() { return hash_of(machine_id() + " " + namespace_id("net")); }

uint64_t own_host(const std::string& name) { return hash_of(machine_id() + " " + name); }

}  // namespace ringcoll::remote

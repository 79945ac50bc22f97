#include "transport/verbs/wire.h"

#include <fmt/core.h>

#include <cstring>

namespace ringcoll::rdma {

std::string name_of(const Address& address) {
  return {address.name, ::strnlen(address.name, sizeof address.name)};
}

std::string text_of(const Address& address) {
  return fmt::format("{} ({}, {})", name_of(address),
                     name_of(static_cast<verbs::LinkLayer>(address.link_layer)),
                     address.gid.text());
}

std::string encode_ports(const std::vector<Address>& ports) {
  return {reinterpret_cast<const char*>(ports.data()), ports.size() * sizeof(Address)};
}

std::vector<Address> decode_ports(std::string_view text) {
  size_t count = text.size() / sizeof(Address);
  if (text.size() % sizeof(Address) != 0 || count > kMostPorts) return {};
  std::vector<Address> ports(count);
  if (count > 0) std::memcpy(ports.data(), text.data(), text.size());
  for (const Address& port : ports)
    if (port.magic != kMagic || port.version != kVersion) return {};
  return ports;
}

std::string mismatch(const Address& theirs, const Address& mine) {
  if (theirs.magic != kMagic || theirs.version != kVersion)
    return "its address is not one of this version of ringcoll";
  if (theirs.slot_bytes != mine.slot_bytes)
    return fmt::format("RINGCOLL_INLINE_BYTES differs: slots of {} bytes there, {} here",
                       theirs.slot_bytes, mine.slot_bytes);
  if (theirs.link_layer != mine.link_layer || theirs.gid_type != mine.gid_type)
    return fmt::format(
        "{} there, {} here: both must be InfiniBand or both RoCE v2 "
        "(RINGCOLL_DEVICES, RINGCOLL_GID_INDEX)",
        text_of(theirs), text_of(mine));
  bool ethernet = static_cast<verbs::LinkLayer>(mine.link_layer) == verbs::LinkLayer::kEthernet;
  if (ethernet && theirs.gid.is_ipv4() != mine.gid.is_ipv4())
    return fmt::format("{} there, {} here: both must be IPv4 or both IPv6 (RINGCOLL_GID_INDEX)",
                       text_of(theirs), text_of(mine));
  return "";
}

}  // namespace ringcoll::rdma

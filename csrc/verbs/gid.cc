#include "verbs/gid.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

namespace ringcoll::verbs {
namespace {

const GidEntry* entry_of(const Port& port, int index) {
  auto found = std::ranges::find(port.gids, index, &GidEntry::index);
  return found == port.gids.end() ? nullptr : &*found;
}

void reject_others(const Port& port, const std::string& why, GidChoice* choice) {
  for (const GidEntry& entry : port.gids)
    if (entry.index != choice->index) choice->rejected.push_back({entry.index, why});
}

GidChoice choose_named(const Port& port, int index) {
  GidChoice choice;
  const GidEntry* entry = entry_of(port, index);
  if (!entry) {
    std::string there;
    for (const GidEntry& e : port.gids)
      there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", e.index, e.gid.text());
    choice.reason = fmt::format(
        "RINGCOLL_GID_INDEX={}: the port has no such GID; there are: {}. Leave it at "
        "-1 to have one chosen",
        index, there.empty() ? "none" : there);
    return choice;
  }
  choice.index = index;
  choice.gid = entry->gid;
  choice.reason = "named by RINGCOLL_GID_INDEX";
  reject_others(port, "another one is named by RINGCOLL_GID_INDEX", &choice);
  return choice;
}

GidChoice choose_infiniband(const Port& port) {
  GidChoice choice;
  const GidEntry* entry = entry_of(port, 0);
  if (!entry) {
    choice.reason = "the port has no GID 0: is a subnet manager (opensm) running?";
    return choice;
  }
  choice.index = 0;
  choice.gid = entry->gid;
  choice.reason = "InfiniBand: the port's first GID";
  reject_others(port, "InfiniBand: the first is used", &choice);
  return choice;
}

/// Less is better.
enum class Order { kIpv4, kIpv6, kLinkLocal };

Order order_of(const Gid& gid) {
  if (gid.is_ipv4()) return Order::kIpv4;
  return gid.is_link_local() ? Order::kLinkLocal : Order::kIpv6;
}

const char* describe(Order order) {
  switch (order) {
    case Order::kIpv4:
      return "RoCE v2 over IPv4";
    case Order::kIpv6:
      return "RoCE v2 over IPv6";
    case Order::kLinkLocal:
      return "RoCE v2 over link-local IPv6, which reaches one Ethernet segment only";
  }
  return "?";
}

/// Why an entry of a RoCE port cannot be used; "" if it can.
std::string objection(const GidEntry& entry, const std::string& interface, AddressFamily family) {
  if (entry.type != GidType::kRoceV2)
    return fmt::format("{}: only RoCE v2 is used", name_of(entry.type));
  if (!entry.interface.empty() && !interface.empty() && entry.interface != interface)
    return fmt::format("belongs to {}, not to {}", entry.interface, interface);
  bool ipv4 = entry.gid.is_ipv4();
  if (family == AddressFamily::kIpv4 && !ipv4) return "IPv6, but the peers are reached by IPv4";
  if (family == AddressFamily::kIpv6 && ipv4) return "IPv4, but the peers are reached by IPv6";
  return "";
}

std::string none_fits(const Port& port, const std::string& interface) {
  if (port.gids.empty())
    return fmt::format(
        "the GID table is empty: give the interface {} an address and bring it up "
        "(ip link set … up)",
        interface.empty() ? "of the port" : interface);
  return "none of the port's GIDs can be used: give its interface an IPv4 or IPv6 address, or name "
         "one by RINGCOLL_GID_INDEX";
}

GidChoice choose_roce(const Port& port, const GidWish& wish) {
  const std::string& interface = wish.interface.empty() ? port.interface : wish.interface;
  GidChoice choice;
  const GidEntry* best = nullptr;
  // An entry whose interface is not visible (another network namespace) comes after all others.
  auto rank = [](const GidEntry& e) { return std::pair(e.interface.empty(), order_of(e.gid)); };
  for (const GidEntry& entry : port.gids) {
    bool usable = objection(entry, interface, wish.family).empty();
    if (usable && (!best || rank(entry) < rank(*best))) best = &entry;
  }
  for (const GidEntry& entry : port.gids) {
    if (&entry == best) continue;
    std::string why = objection(entry, interface, wish.family);
    if (why.empty())
      why = fmt::format("{}: gid {} is better or comes first", describe(order_of(entry.gid)),
                        best->index);
    choice.rejected.push_back({entry.index, why});
  }
  if (!best) {
    choice.reason = none_fits(port, interface);
    return choice;
  }
  choice.index = best->index;
  choice.gid = best->gid;
  choice.reason = fmt::format("{}, of {}", describe(order_of(best->gid)),
                              best->interface.empty() ? "an unknown interface" : best->interface);
  return choice;
}

}  // namespace

GidChoice choose_gid(const Port& port, const GidWish& wish) {
  if (wish.index >= 0) return choose_named(port, wish.index);
  return port.link_layer == LinkLayer::kEthernet ? choose_roce(port, wish)
                                                 : choose_infiniband(port);
}

bool needs_global_route(const Port& port, const Gid& mine, const Gid& theirs) {
  if (port.link_layer == LinkLayer::kEthernet || port.global_route_required) return true;
  return mine.subnet_prefix() != theirs.subnet_prefix();
}

}  // namespace ringcoll::verbs

#include "net/interfaces.h"

#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace ringcoll {
namespace {

constexpr std::array<std::string_view, 4> kVirtual = {"docker", "virbr", "veth", "br-"};

bool is_virtual(const Interface& interface) {
  return std::ranges::any_of(
      kVirtual, [&](std::string_view prefix) { return interface.name.starts_with(prefix); });
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

std::string names_of(std::span<const Interface> interfaces) {
  std::vector<std::string> names;
  for (const Interface& interface : interfaces)
    names.push_back(fmt::format("{} ({}{})", interface.name, interface.address.host(),
                                interface.up ? "" : ", down"));
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* first = nullptr;
  check(getifaddrs(&first) == 0, Code::kTransport, "{}", errno_text("getifaddrs", errno));
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<Interface> interfaces;
  for (ifaddrs* entry = first; entry; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (!address || is_link_local(address)) continue;
    bool v4 = address->sa_family == AF_INET;
    if (!v4 && address->sa_family != AF_INET6) continue;
    socklen_t length = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    bool up = (entry->ifa_flags & IFF_UP) && (entry->ifa_flags & IFF_RUNNING);
    bool loopback = entry->ifa_flags & IFF_LOOPBACK;
    interfaces.push_back({entry->ifa_name, Address(address, length).with_port(0), up, loopback});
  }
  std::ranges::stable_sort(interfaces, {}, [](const Interface& interface) {
    return interface.address.family() == AF_INET ? 0 : 1;
  });
  return interfaces;
}

Interface choose_interface(const std::string& name, std::span<const Interface> interfaces) {
  auto first = [&](auto wanted) {
    auto found = std::ranges::find_if(interfaces, wanted);
    return found == interfaces.end() ? nullptr : &*found;
  };
  if (!name.empty()) {
    const Interface* named = first([&](const Interface& i) { return i.name == name; });
    check(named, Code::kInvalidArgument,
          "network interface \"{}\" does not exist or has no address; there are: {}. Set "
          "RINGCOLL_INTERFACE to one of them, or leave it empty",
          name, names_of(interfaces));
    return *named;
  }
  const Interface* chosen =
      first([](const Interface& i) { return i.up && !i.loopback && !is_virtual(i); });
  if (!chosen) chosen = first([](const Interface& i) { return i.loopback; });
  check(
      chosen, Code::kInvalidArgument,
      "no network interface is up, not even loopback; there are: {}. Bring one up (ip link set lo "
      "up)",
      names_of(interfaces));
  return *chosen;
}

}  // namespace ringcoll

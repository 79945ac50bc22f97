#include "net/interfaces.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netpacket/packet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>
#include <optional>

#include "base/error.h"

namespace ringcoll {
namespace {

// IFF_LOWER_UP of <linux/if.h>, which cannot be included together with <net/if.h>. The kernel sets
// IFF_RUNNING up to a second later.
constexpr unsigned kCarrier = 1U << 16;
constexpr std::array<std::string_view, 4> kVirtual = {"docker", "virbr", "veth", "br-"};

bool is_virtual(std::string_view name) {
  return std::ranges::any_of(kVirtual,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_up(unsigned flags) { return (flags & IFF_UP) && (flags & (IFF_RUNNING | kCarrier)); }

using Addresses = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;
Addresses all_addresses() {
  ifaddrs* first = nullptr;
  check(getifaddrs(&first) == 0, Code::kTransport, "{}", errno_text("getifaddrs", errno));
  return {first, freeifaddrs};
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

std::span<const uint8_t> bytes_of(const Address& address) {
  if (address.family() == AF_INET)
    return {reinterpret_cast<const uint8_t*>(
                &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr),
            4};
  return {reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr.s6_addr, 16};
}

int prefix_of(const sockaddr* mask) {
  if (!mask) return 0;
  socklen_t length = mask->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  Address address(mask, length);
  int bits = 0;
  for (uint8_t byte : bytes_of(address)) bits += std::popcount(byte);
  return bits;
}

// Drivers of virtual devices report nothing, or -1.
int speed_of(const std::string& name) {
  int mbps = 0;
  std::ifstream("/sys/class/net/" + name + "/speed") >> mbps;
  return std::max(mbps, 0);
}

// Whether the address lies in the network `text`, such as "10.1.0.0/16"; nothing if `text` is no
// network.
std::optional<bool> lies_in(const Address& address, std::string_view text) {
  size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {};
  std::string_view digits = text.substr(slash + 1);
  int bits = -1;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  Address network;
  try {
    std::string host(text.substr(0, slash));
    bool v4 = host.find(':') == std::string::npos;
    network = Address::parse(v4 ? host + ":0" : "[" + host + "]:0");
  } catch (const Error&) {
    return {};
  }
  int most = static_cast<int>(bytes_of(network).size()) * 8;
  if (error != std::errc() || end != digits.data() + digits.size() || bits < 0 || bits > most)
    return {};
  return share_network(network, address, bits);
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) entries.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return entries;
}

// RINGCOLL_INTERFACE or a similar list, parsed.
struct Wanted {
  bool exclude = false;
  bool whole = false;
  std::vector<std::string> entries;

  explicit Wanted(std::string_view text) {
    if (text.starts_with('^')) {
      exclude = true;
      text.remove_prefix(1);
    }
    if (text.starts_with('=')) {
      whole = true;
      text.remove_prefix(1);
    }
    entries = split_list(text);
  }
  bool named(const Interface& interface) const {
    return std::ranges::any_of(entries, [&](const std::string& entry) {
      if (auto inside = lies_in(interface.address, entry)) return *inside;
      return whole ? interface.name == entry : interface.name.starts_with(entry);
    });
  }
};

std::vector<Interface> filter(std::span<const Interface> interfaces, auto&& wanted) {
  std::vector<Interface> found;
  std::ranges::copy_if(interfaces, std::back_inserter(found), wanted);
  return found;
}

}  // namespace

std::string network_of(const Address& address, int bits) {
  std::array<uint8_t, 16> bytes{};
  std::span<const uint8_t> from = bytes_of(address);
  for (int bit = 0; bit < bits; bit++)
    bytes[bit / 8] |= from[bit / 8] & static_cast<uint8_t>(0x80 >> bit % 8);
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.family(), bytes.data(), text, sizeof text);
  return fmt::format("{}/{}", text, bits);
}

bool share_network(const Address& a, const Address& b, int bits) {
  if (a.family() != b.family()) return false;
  std::span<const uint8_t> x = bytes_of(a), y = bytes_of(b);
  auto whole = static_cast<size_t>(bits / 8);
  if (!std::equal(x.begin(), x.begin() + whole, y.begin())) return false;
  auto rest = static_cast<uint8_t>(0xff00 >> bits % 8);
  return bits % 8 == 0 || ((x[whole] ^ y[whole]) & rest) == 0;
}

bool is_loopback(const Address& address) {
  if (address.family() == AF_INET) return bytes_of(address)[0] == IN_LOOPBACKNET;
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr);
}

std::vector<Interface> list_interfaces() {
  Addresses all = all_addresses();
  std::vector<Interface> interfaces;
  for (ifaddrs* entry = all.get(); entry; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (!address || is_link_local(address)) continue;
    bool v4 = address->sa_family == AF_INET;
    if (!v4 && address->sa_family != AF_INET6) continue;
    socklen_t length = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    bool up = is_up(entry->ifa_flags);
    bool loopback = entry->ifa_flags & IFF_LOOPBACK;
    interfaces.push_back({entry->ifa_name, Address(address, length).with_port(0), up, loopback,
                          prefix_of(entry->ifa_netmask), speed_of(entry->ifa_name)});
  }
  std::ranges::stable_sort(interfaces, {}, [](const Interface& interface) {
    return interface.address.family() == AF_INET ? 0 : 1;
  });
  return interfaces;
}

// Reads the AF_PACKET entry that each interface has, with or without an address. /sys may belong to
// another network namespace.
Links look_at_links() {
  Addresses all = all_addresses();
  Links links;
  for (ifaddrs* entry = all.get(); entry; entry = entry->ifa_next) {
    links.loopback_is_up |= (entry->ifa_flags & IFF_LOOPBACK) && is_up(entry->ifa_flags);
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_PACKET) continue;
    auto kind = reinterpret_cast<const sockaddr_ll*>(entry->ifa_addr)->sll_hatype;
    links.more_may_come |=
        (kind == ARPHRD_ETHER || kind == ARPHRD_INFINIBAND) && !is_virtual(entry->ifa_name);
  }
  return links;
}

std::vector<Interface> select_interfaces(const std::string& wanted, std::string_view who,
                                         std::span<const Interface> interfaces) {
  Wanted list(wanted);
  std::vector<Interface> found;
  if (wanted.empty())
    found = filter(interfaces,
                   [](const Interface& i) { return i.up && !i.loopback && !is_virtual(i.name); });
  else if (list.exclude)
    found = filter(interfaces,
                   [&](const Interface& i) { return i.up && !i.loopback && !list.named(i); });
  else
    found = filter(interfaces, [&](const Interface& i) { return list.named(i); });
  if (found.empty() && (wanted.empty() || list.exclude))
    found = filter(interfaces, [&](const Interface& i) {
      return i.loopback && !(list.exclude && list.named(i));
    });
  check(!found.empty() || !wanted.empty(), Code::kInvalidArgument,
        "no network interface is up, not even loopback; there are: {}. Bring one up (ip link set "
        "lo up)",
        names_of(interfaces));
  check(!found.empty(), Code::kInvalidArgument,
        "{}={} matches no network interface with an address; there are: {}. Name one of them, or "
        "leave it empty",
        who, wanted, names_of(interfaces));
  auto up = filter(found, [](const Interface& i) { return i.up; });
  return up.empty() ? found : up;
}

}  // namespace ringcoll

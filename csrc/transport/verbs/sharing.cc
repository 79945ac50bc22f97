// Shares ports out and joins pairs; the header has the rules.
#include "transport/verbs/sharing.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace ringcoll::rdma {
namespace {

constexpr int kIpv4Bits = 96;  // before an IPv4 address in IPv6 form

using Networks = std::vector<std::string>;

Networks networks_of(const std::vector<Address>& ports) {
  Networks networks;
  for (size_t i = 0; i < ports.size(); i++) networks.push_back(network_of(ports, i));
  return networks;
}

verbs::Gid masked(verbs::Gid gid, int bits) {
  for (int bit = bits; bit < 128; bit++)
    gid.bytes[static_cast<size_t>(bit / 8)] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
  return gid;
}

/// The networks that every rank has.
std::set<std::string> joint_networks(std::span<const Networks> all) {
  std::set<std::string> joint(all.front().begin(), all.front().end());
  joint.erase("");
  for (const Networks& networks : all)
    std::erase_if(joint, [&](const std::string& n) { return !std::ranges::count(networks, n); });
  return joint;
}

/// The ports that a rank chooses from, in the order of its list.
std::vector<size_t> nearest_of(const Sharer& rank, const Networks& networks,
                               const std::set<std::string>& joint) {
  std::vector<size_t> considered;
  for (size_t i = 0; i < rank.ports.size(); i++)
    if (joint.contains(networks[i]) || (joint.empty() && (i == 0 || rank.ports[i].named)))
      considered.push_back(i);
  auto distance = [&](size_t port) { return rank.ports[port].distance; };
  auto least = distance(*std::ranges::min_element(considered, {}, distance));
  std::erase_if(considered, [&](size_t port) { return distance(port) > least; });
  return considered;
}

std::optional<size_t> find_network(const Networks& networks, const std::string& wanted) {
  auto found = std::ranges::find(networks, wanted);
  if (wanted.empty() || found == networks.end()) return {};
  return static_cast<size_t>(found - networks.begin());
}

}  // namespace

std::string network_of(const std::vector<Address>& ports, size_t number) {
  const Address& port = ports[number];
  if (static_cast<verbs::LinkLayer>(port.link_layer) == verbs::LinkLayer::kInfiniBand)
    return port.gid.is_link_local() ? fmt::format("InfiniBand, port {} of the list", number)
                                    : fmt::format("InfiniBand {:016x}", port.gid.subnet_prefix());
  if (port.prefix_bits == 0) return "";
  int before = port.gid.is_ipv4() ? kIpv4Bits : 0;
  return fmt::format("{}/{}", masked(port.gid, before + port.prefix_bits).text(), port.prefix_bits);
}

std::vector<size_t> share_ports(std::span<const Sharer> ranks) {
  std::vector<Networks> networks;
  for (const Sharer& rank : ranks) networks.push_back(networks_of(rank.ports));
  if (ranks.empty()) return {};
  auto joint = joint_networks(networks);
  std::vector<std::pair<size_t, std::vector<size_t>>> choices;  // of a rank
  for (size_t r = 0; r < ranks.size(); r++)
    choices.emplace_back(r, nearest_of(ranks[r], networks[r], joint));
  std::ranges::stable_sort(choices, {}, [](const auto& choice) { return choice.second.size(); });
  // Counted by GID: two ranks of a machine may have different lists.
  using Gid = decltype(verbs::Gid::bytes);
  std::map<std::pair<int, Gid>, int> taken;
  std::vector<size_t> shares(ranks.size());
  for (const auto& [r, nearest] : choices) {
    const Sharer& rank = ranks[r];
    auto users = [&](size_t port) -> int& {
      return taken[{rank.machine, rank.ports[port].gid.bytes}];
    };
    shares[r] = *std::ranges::min_element(nearest, {}, users);
    users(shares[r])++;
  }
  return shares;
}

PortPair join_ports(const Side& lower, const Side& higher) {
  auto same = std::ranges::find(higher.ports, lower.ports[lower.share].gid, &Address::gid);
  if (same != higher.ports.end())
    return {lower.share, static_cast<size_t>(same - higher.ports.begin())};
  Networks mine = networks_of(lower.ports), theirs = networks_of(higher.ports);
  const std::string &of_mine = mine[lower.share], &of_theirs = theirs[higher.share];
  if (!of_mine.empty() && of_mine == of_theirs) return {lower.share, higher.share};
  if (auto port = find_network(theirs, of_mine)) return {lower.share, *port};
  if (auto port = find_network(mine, of_theirs)) return {*port, higher.share};
  for (size_t i = 0; i < mine.size(); i++)
    if (auto port = find_network(theirs, mine[i])) return {i, *port};
  bool have_it = lower.share < higher.ports.size();
  return have_it ? PortPair{lower.share, lower.share} : PortPair{0, 0};
}

}  // namespace ringcoll::rdma

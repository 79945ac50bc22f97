#include "topology/topology.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "topology/hostlist.h"

namespace ringcoll {

namespace {

// A host to be sorted.
struct Host {
  const Location* location;  // the location of the host's lowest rank
  int number;
};

bool host_less(const Host& a, const Host& b) {
  const Location &x = *a.location, &y = *b.location;
  if (x.placement.order != y.placement.order) return x.placement.order < y.placement.order;
  if (x.host_name != y.host_name) return natural_less(x.host_name, y.host_name);
  return a.number < b.number;
}

// Rotates the circle so that it begins with the element that has host 0. The circle stays the same:
// so all communicators of a job have the same neighbours and share links, whatever their first
// rank.
template <typename T, typename HasFirst>
void turn(std::vector<T>* circle, HasFirst has_first) {
  std::ranges::rotate(*circle, std::ranges::find_if(*circle, has_first));
}

bool holds_first(const std::vector<Host>& hosts) {
  return std::ranges::any_of(hosts, [](const Host& host) { return host.number == 0; });
}

// Sorts the hosts of one group at level `depth` from the top into the order of the ring.
std::vector<Host> arrange(std::vector<Host> hosts, size_t depth) {
  std::ranges::sort(hosts, host_less);
  auto is_first = [](const Host& host) { return host.number == 0; };
  bool with_first = holds_first(hosts);
  if (depth == hosts[0].location->placement.groups.size()) {
    if (with_first) turn(&hosts, is_first);
    return hosts;
  }
  // Groups are sorted by their first host in the source, else by name.
  std::map<std::string_view, std::vector<Host>> by_name;
  for (const Host& host : hosts) by_name[host.location->placement.groups[depth]].push_back(host);
  std::vector<std::vector<Host>> groups;
  for (auto& [name, members] : by_name) groups.push_back(std::move(members));
  std::ranges::sort(groups, [&](const auto& a, const auto& b) {
    const Placement &x = a[0].location->placement, &y = b[0].location->placement;
    if (x.order != y.order) return x.order < y.order;
    return natural_less(x.groups[depth], y.groups[depth]);
  });
  if (with_first) turn(&groups, holds_first);
  std::vector<Host> order;
  for (auto& group : groups)
    for (const Host& host : arrange(std::move(group), depth + 1)) order.push_back(host);
  return order;
}

/// A rank's groups of the kinds that kBelowHosts names.
constexpr std::array kPlacesBelow = {&Location::socket, &Location::numa_node, &Location::cache};
static_assert(kPlacesBelow.size() == kBelowHosts.size());

/// The first `kinds` of these groups; the rest of the path is zero.
using PathBelow = std::array<int, kPlacesBelow.size()>;
PathBelow path_below(const Location& location, size_t kinds) {
  PathBelow path{};
  for (size_t kind = 0; kind < kinds; kind++) path[kind] = location.*kPlacesBelow[kind];
  return path;
}

std::string level_name_of(size_t height) {
  if (height == 0) return "leaf";
  return height == 1 ? "spine" : fmt::format("level{}", height + 1);
}

}  // namespace

Topology::Topology(std::vector<Location> locations) : locations_(std::move(locations)) {
  find_crowded();
  find_hosts();
  find_level_below();
  find_levels_above();
  find_order();
}

void Topology::find_hosts() {
  std::map<std::string_view, int> numbers;
  std::vector<int> host_of;
  for (Rank rank = 0; rank < size(); rank++) {
    invariant(at(rank).placement.groups.size() == at(0).placement.groups.size(),
              "placements of different depths: ranks 0 and {}", rank);
    int host = numbers.try_emplace(locations_[rank].host_id, static_cast<int>(numbers.size()))
                   .first->second;
    if (host == hosts()) hosts_.emplace_back();
    hosts_[host].push_back(rank);
    host_of.push_back(host);
  }
  names_ = {"host"};
  groups_ = {std::move(host_of)};
}

// Finds the largest kind of group that divides hosts. A host counts as undivided if one of its
// ranks is bound to no group of this kind. Where ranks share CPUs there is no such level: there a
// message is a context switch, however near the ranks are.
void Topology::find_level_below() {
  if (crowded()) return;
  for (size_t kind = 0; kind < kBelowHosts.size(); kind++) {
    std::vector<bool> bound(hosts_.size(), true);
    for (Rank rank = 0; rank < size(); rank++)
      if (at(rank).*kPlacesBelow[kind] < 0) bound[host_of(rank)] = false;
    std::map<std::pair<int, PathBelow>, int> numbers;
    std::vector<int> groups;
    for (Rank rank = 0; rank < size(); rank++) {
      int host = host_of(rank);
      std::pair place(host, path_below(at(rank), bound[host] ? kind + 1 : 0));
      groups.push_back(
          numbers.try_emplace(std::move(place), static_cast<int>(numbers.size())).first->second);
    }
    if (numbers.size() == hosts_.size() || numbers.size() == locations_.size()) continue;
    names_.emplace(names_.begin(), kBelowHosts[kind]);
    groups_.insert(groups_.begin(), std::move(groups));
    host_level_ = 1;
    return;
  }
}

void Topology::find_levels_above() {
  size_t depth = hosts() ? at(hosts_[0][0]).placement.groups.size() : 0;
  int below = hosts();  // the number of groups at the level below
  for (size_t height = 0; below > 1; height++) {
    // The key is the path from the top, since equal names below different switches are different
    // groups.
    size_t named = height < depth ? depth - height : 0;
    std::map<std::vector<std::string>, int> numbers;
    std::vector<int> groups(locations_.size());
    for (const std::vector<Rank>& ranks : hosts_) {
      const auto& path = at(ranks[0]).placement.groups;
      std::vector<std::string> key(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(named));
      int group =
          numbers.try_emplace(std::move(key), static_cast<int>(numbers.size())).first->second;
      for (Rank rank : ranks) groups[rank] = group;
    }
    if (static_cast<int>(numbers.size()) == below) continue;
    below = static_cast<int>(numbers.size());
    names_.push_back(named > 0 ? level_name_of(height) : "network");
    groups_.push_back(std::move(groups));
  }
}

void Topology::find_order() {
  std::vector<Host> hosts;
  for (const std::vector<Rank>& ranks : hosts_)
    hosts.push_back({&at(ranks[0]), static_cast<int>(hosts.size())});
  if (hosts.empty()) return;
  for (const Host& host : arrange(std::move(hosts), 0)) {
    // Sockets are sorted by their lowest ranks, and so are the groups inside them. So the lowest
    // rank is the host's first.
    std::array<std::map<PathBelow, Rank>, kBelowHosts.size()> first_of;  // by kind
    std::vector<std::array<Rank, kBelowHosts.size() + 1>> keys;
    for (Rank rank : hosts_[host.number]) {
      std::array<Rank, kBelowHosts.size() + 1> key{};
      for (size_t kind = 0; kind < kBelowHosts.size(); kind++)
        key[kind] = first_of[kind].try_emplace(path_below(at(rank), kind + 1), rank).first->second;
      key.back() = rank;
      keys.push_back(key);
    }
    std::ranges::sort(keys);
    for (const auto& key : keys) order_.push_back(key.back());
  }
}

const std::string& Topology::source() const {
  static const std::string nothing;
  return locations_.empty() ? nothing : locations_[0].placement_source;
}

std::vector<std::string> Topology::explain(size_t most) const {
  std::vector<std::string> lines;
  for (Rank rank : order_) {
    const Location& location = at(rank);
    if (hosts_[host_of(rank)][0] != rank) continue;
    if (lines.size() == most) {
      lines.push_back(fmt::format("… {} more", hosts() - static_cast<int>(most)));
      break;
    }
    std::string placement =
        location.placement.groups.empty()
            ? "by its name"
            : fmt::format("at {}, by {}", fmt::join(location.placement.groups, "."),
                          location.placement.why);
    lines.push_back(fmt::format("host {} ({} rank{}, first {}): {}", location.host_name,
                                ranks_on_host(rank), ranks_on_host(rank) == 1 ? "" : "s", rank,
                                placement));
  }
  return lines;
}

bool Topology::crowded() const { return std::ranges::count(crowded_, true) > 0; }

// Many ranks have the same CPUs, so each set of CPUs is examined once.
void Topology::find_crowded() {
  std::map<std::string, std::map<std::vector<int>, std::vector<Rank>>> machines;
  for (Rank rank = 0; rank < size(); rank++)
    machines[locations_[rank].machine][locations_[rank].cpus].push_back(rank);
  crowded_.resize(locations_.size());
  for (const auto& [machine, sets] : machines) {
    size_t crowd = 0;
    std::set<int> their_cpus;
    for (const auto& [mine, alike] : sets) {
      std::set<int> all;
      size_t ranks = 0;
      for (const auto& [theirs, others] : sets) {
        std::vector<int> both;
        std::ranges::set_intersection(mine, theirs, std::back_inserter(both));
        if (both.empty()) continue;
        ranks += others.size();
        all.insert(theirs.begin(), theirs.end());
      }
      if (ranks <= all.size()) continue;
      for (Rank rank : alike) crowded_[rank] = true;
      crowd += alike.size();
      their_cpus.insert(mine.begin(), mine.end());
    }
    if (crowd == 0) continue;
    size_t for_each = (crowd + their_cpus.size() - 1) / their_cpus.size();
    ranks_for_each_cpu_ = std::max(ranks_for_each_cpu_, static_cast<int>(for_each));
  }
}

std::string Topology::describe(Rank rank) const {
  if (rank < 0 || rank >= size()) return fmt::format("rank {}", rank);
  return ringcoll::describe(rank, at(rank));
}

}  // namespace ringcoll

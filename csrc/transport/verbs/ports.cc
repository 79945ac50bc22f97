#include "transport/verbs/ports.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/interfaces.h"
#include "transport/verbs/sharing.h"
#include "verbs/discovery.h"
#include "verbs/queue_pair.h"

namespace ringcoll::rdma {
namespace {

// Payload of up to so many bytes travels in one write with its header, and is copied out of the
// inbox. For longer payload, naming a place costs less than that copy.
constexpr int64_t kShortBytes = 8 << 10;
constexpr uint32_t kLine = 64;

uint32_t slot_bytes(const Config& config) {
  auto bytes = static_cast<uint32_t>(std::max(kShortBytes, config.inline_bytes));
  return (static_cast<uint32_t>(sizeof(Header)) + bytes + kLine - 1) / kLine * kLine;
}

Settings settings_of(const TransportOptions& options) {
  const Config& config = options.config;
  return {.gid_index = static_cast<int>(config.gid_index),
          .slot_bytes = slot_bytes(config),
          .copied_bytes = static_cast<uint32_t>(std::max<int64_t>(kCopyBytes, config.inline_bytes)),
          .register_bytes = static_cast<uint64_t>(config.register_bytes),
          .traffic_class = config.traffic_class,
          .service_level = config.service_level,
          .qp_timeout = config.qp_timeout,
          .qp_retries = config.qp_retries,
          .most_bytes = options.arena.bytes(),
          .retry_seconds = verbs::retry_seconds(static_cast<int>(config.qp_timeout),
                                                static_cast<int>(config.qp_retries))};
}

verbs::GidType type_of(const verbs::UsablePort& port) {
  for (const verbs::GidEntry& entry : port.port.gids)
    if (entry.index == port.gid.index) return entry.type;
  return verbs::GidType::kInfiniBand;
}

// Each open port registers the whole's stretch of the arena. As much again is left for what else it
// needs, including parts.
size_t ports_within_limit(size_t arena_bytes) {
  uint64_t limit = verbs::memlock_limit();
  if (limit == std::numeric_limits<uint64_t>::max()) return kMostPorts;
  return std::clamp<uint64_t>(limit / (2 * std::max<size_t>(arena_bytes, 1)), 1, kMostPorts);
}

// A user who names devices wants to know which are not used.
void warn_of_refused(const verbs::Selection& selection, const Config& config) {
  if (!selection.named) return;
  for (const auto& [name, why] : selection.refused)
    log_warning("RINGCOLL_DEVICES={}: {} is not used: {}", config.devices, name, why);
}

/// Bits of the network prefix of a GID's IP network; 0: not known. An IPv6 network of hosts has 64
/// (RFC 4291).
int prefix_bits_of(const verbs::Gid& gid, std::span<const Interface> interfaces) {
  for (const Interface& interface : interfaces)
    if (interface.address.host() == gid.text()) return interface.prefix_bits;
  return gid.is_ipv4() || gid.is_link_local() ? 0 : 64;
}

}  // namespace

std::vector<verbs::UsablePort> find_ports(const Config& config, size_t arena_bytes, bool warn) {
  verbs::Survey survey = verbs::survey();
  verbs::Selection selection = verbs::select_ports(survey, config);
  check(!selection.usable.empty(), Code::kTransport, "{}", selection.why_none(survey));
  if (warn) warn_of_refused(selection, config);
  auto ports = selection.shared();
  ports.resize(std::min(ports.size(), ports_within_limit(arena_bytes)));
  return ports;
}

std::string names_of(std::span<const verbs::UsablePort> ports) {
  std::string names;
  for (const verbs::UsablePort& port : ports)
    names += fmt::format("{}{}:{}", names.empty() ? "" : ", ", port.device, port.port.number);
  return names;
}

Address address_of(const verbs::UsablePort& port, Rank rank, uint32_t slot_bytes) {
  Address address{.rank = rank,
                  .slot_bytes = slot_bytes,
                  .mtu_bytes = port.port.active_mtu_bytes,
                  .lid = port.port.lid,
                  .link_layer = static_cast<uint8_t>(port.port.link_layer),
                  .gid_type = static_cast<uint8_t>(type_of(port)),
                  .gid = port.gid.gid};
  std::string name = names_of({&port, 1});
  std::memcpy(address.name, name.data(), std::min(name.size(), sizeof address.name - 1));
  return address;
}

Ports::Ports(const TransportOptions& options)
    : rank_(options.rank),
      settings_(settings_of(options)),
      seats_(options.seats),
      usable_(find_ports(options.config, options.own_arena().size(), true)),
      peers_(static_cast<size_t>(options.size)),
      open_(usable_.size()) {
  auto interfaces = list_interfaces();
  for (const verbs::UsablePort& port : usable_) {
    Address& told = told_.emplace_back(address_of(port, rank_, settings_.slot_bytes));
    told.prefix_bits = static_cast<uint8_t>(prefix_bits_of(told.gid, interfaces));
    told.distance = distance_to(port);
    told.named = !options.config.devices.empty();
  }
}

// The firmware reports distances of at most 254, and an unknown node is farther than all. But where
// there is one node, everything is near.
uint8_t Ports::distance_to(const verbs::UsablePort& port) const {
  constexpr int kFar = 255;
  if (seats_.node_distances.size() < 2) return 0;
  auto found = seats_.node_distances.find(port.numa_node);
  return static_cast<uint8_t>(
      std::clamp(found == seats_.node_distances.end() ? kFar : found->second, 0, kFar));
}

// Runs once, when the ports of all ranks that are reached are known. Precondition: the mutex is
// held.
void Ports::share_out() {
  if (std::exchange(shared_out_, true)) return;
  peer_of(rank_).ports = told_;
  std::vector<Rank> order = seats_.order;
  if (order.empty()) {
    order.resize(peers_.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::erase_if(order, [&](Rank rank) { return peer_of(rank).ports.empty(); });
  std::vector<Sharer> sharers;
  for (Rank rank : order) {
    int machine =
        seats_.machine_of.empty() ? rank : seats_.machine_of.at(static_cast<size_t>(rank));
    sharers.push_back({machine, peer_of(rank).ports});
  }
  auto shares = share_ports(sharers);
  for (size_t i = 0; i < order.size(); i++) peer_of(order[i]).share = shares[i];
  const Peer& self = peer_of(rank_);
  std::string network = network_of(self.ports, self.share);
  std::string why = fmt::format("at distance {} (10 is the rank's own NUMA node)",
                                self.ports[self.share].distance);
  if (seats_.node_distances.size() < 2)
    why = "as near as the others, for the rank runs on several NUMA nodes or there is one";
  log_debug("rank {} uses {} of {}: in {}, {}", rank_, text_of(self.ports[self.share]),
            names_of(usable_), network.empty() ? "a network that is not known" : network, why);
}

std::string Ports::port_of(Rank rank) {
  std::lock_guard lock(mutex_);
  share_out();
  const Peer& peer = peer_of(rank);
  return peer.ports.empty() ? "" : name_of(peer.ports[peer.share]);
}

size_t Ports::port_to(Rank peer) {
  std::lock_guard lock(mutex_);
  share_out();
  const Peer &self = peer_of(rank_), &other = peer_of(peer);
  Side mine{self.ports, self.share}, theirs{other.ports, other.share};
  return rank_ < peer ? join_ports(mine, theirs).lower : join_ports(theirs, mine).higher;
}

OpenPort& Ports::open(size_t number) {
  std::lock_guard lock(mutex_);
  auto& port = open_.at(number);
  if (!port) port = std::make_unique<OpenPort>(usable_[number], settings_.retry_seconds);
  return *port;
}

std::string Ports::address() const {
  std::lock_guard lock(mutex_);
  auto now = told_;
  for (size_t number = 0; number < now.size(); number++)
    if (open_[number]) now[number].gid = open_[number]->port().gid.gid;
  return encode_ports(now);
}

// A pair shows that packets get through when it connects, which neighbours in the ring do before
// the first collective.
std::string Ports::reach(Rank peer, std::string_view text) {
  auto theirs = decode_ports(text);
  if (theirs.empty()) return "its address is not one of this version of ringcoll";
  if (theirs[0].rank != peer)
    return fmt::format("it is rank {} and not rank {}", theirs[0].rank, peer);
  auto [lower, higher] = join_ports({told_, 0}, {theirs, 0});
  std::string why = mismatch(theirs[higher], told_[lower]);
  // Kept even if this rank cannot reach the peer: all ranks must share ports out alike, whichever
  // ranks each reaches.
  std::lock_guard lock(mutex_);
  peer_of(peer) = {.ports = std::move(theirs), .reached = why.empty()};
  shared_out_ = false;
  return why;
}

}  // namespace ringcoll::rdma

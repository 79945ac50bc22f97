#include "transport/verbs/verbs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "net/interfaces.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/sharing.h"
#include "transport/verbs/wire.h"
#include "verbs/discovery.h"
#include "verbs/events.h"
#include "verbs/report.h"
#include "verbs/selection.h"

namespace ringcoll {
namespace {

using PortAddress = rdma::Address;

// Payload up to here travels in one write with its header, and is copied out of the inbox. Above,
// naming a place for it costs less than that copy.
constexpr int64_t kShortBytes = 8 << 10;
// What a queue pair needs at least, whatever the arena has.
constexpr size_t kProbeBytes = 64 << 10;
constexpr uint32_t kLine = 64;

uint32_t slot_bytes(const Config& config) {
  auto bytes = static_cast<uint32_t>(std::max(kShortBytes, config.inline_bytes));
  return (static_cast<uint32_t>(sizeof(rdma::Header)) + bytes + kLine - 1) / kLine * kLine;
}

verbs::GidType type_of(const verbs::UsablePort& port) {
  for (const verbs::GidEntry& entry : port.port.gids)
    if (entry.index == port.gid.index) return entry.type;
  return verbs::GidType::kInfiniBand;
}

// Each port that is opened registers the arena, and as much again is for what else it needs.
size_t ports_within_limit(size_t arena_bytes) {
  uint64_t limit = verbs::memlock_limit();
  if (limit == std::numeric_limits<uint64_t>::max()) return rdma::kMostPorts;
  return std::clamp<uint64_t>(limit / (2 * std::max<size_t>(arena_bytes, 1)), 1, rdma::kMostPorts);
}

/// Throws Error(kTransport) that says why there is none.
verbs::Selection select_ports(const Config& config) {
  verbs::Survey survey = verbs::survey();
  verbs::Selection selection = verbs::select_ports(survey, config);
  check(!selection.usable.empty(), Code::kTransport, "{}", selection.why_none(survey));
  return selection;
}

std::vector<verbs::UsablePort> ports_to_share(const verbs::Selection& selection,
                                              size_t arena_bytes) {
  auto ports = selection.shared();
  ports.resize(std::min(ports.size(), ports_within_limit(arena_bytes)));
  return ports;
}

// Whoever names devices wants to know of those that are passed over.
void warn_of_refused(const verbs::Selection& selection, const Config& config) {
  if (!selection.named) return;
  for (const auto& [place, why] : selection.refused)
    log_warning("RINGCOLL_DEVICES={}: {} is not used: {}", config.devices, place, why);
}

std::string names_of(std::span<const verbs::UsablePort> ports) {
  std::string names;
  for (const verbs::UsablePort& port : ports)
    names += fmt::format("{}{}:{}", names.empty() ? "" : ", ", port.device, port.port.number);
  return names;
}

/// Of the IP network of a GID; 0: not known. An IPv6 network of hosts has 64 (RFC 4291).
int prefix_bits_of(const verbs::Gid& gid, std::span<const Interface> interfaces) {
  for (const Interface& interface : interfaces)
    if (interface.address.host() == gid.text()) return interface.prefix_bits;
  return gid.is_ipv4() || gid.is_link_local() ? 0 : 64;
}

// Whether as much as the arena may be locked is asked of the device only where a limit makes it a
// question, for it touches all of that memory.
size_t probe_bytes(const Config& config) {
  bool limited = verbs::memlock_limit() != std::numeric_limits<uint64_t>::max();
  return limited ? static_cast<size_t>(config.arena_bytes) : kProbeBytes;
}

class VerbsTransport final : public Transport {
 public:
  explicit VerbsTransport(const TransportOptions& options);

  std::string address() const override;
  std::string reach(Rank peer, std::string_view text) override;
  std::unique_ptr<Endpoint> connect(Rank peer, Deadline deadline) override;
  bool wants_places() const override { return true; }
  void lend(std::span<Loan> loans) override { shared_.lent->lend(loans); }
  // A region that is deregistered is reached by nobody, once that call has returned.
  void revoke() noexcept override {
    for (rdma::VerbsEndpoint* endpoint : shared_.endpoints) endpoint->stop();
    shared_.lent->forget_all();
  }

  std::string port_of(Rank rank) override;

 private:
  /// What a rank may use, as it told; nothing is known of one without ports.
  struct Peer {
    std::vector<PortAddress> ports;
    size_t share = 0;  // once share_out() has run
  };
  Peer& peer_of(Rank rank) { return peers_.at(static_cast<size_t>(rank)); }
  void share_out();
  size_t port_to(Rank peer);
  uint8_t distance_to(const verbs::UsablePort& port) const;
  rdma::OpenPort& open(size_t number);
  void hear(rdma::OpenPort& port, const verbs::Event& event);
  void read_port_again(rdma::OpenPort& port) const;
  PortAddress own_address(size_t number) const;

  const Rank rank_;
  Dialer& dialer_;
  const int gid_index_;  // RINGCOLL_GID_INDEX
  const Seats seats_;
  std::vector<verbs::UsablePort> usable_;
  std::vector<PortAddress> told_;  // the ports, as all ranks know them
  std::vector<Peer> peers_;        // by rank, this one too
  bool shared_out_ = false;
  rdma::Shared shared_;
  std::vector<std::unique_ptr<verbs::EventThread>> events_;  // last: they use the others
};

VerbsTransport::VerbsTransport(const TransportOptions& options)
    : rank_(options.rank),
      dialer_(options.dialer),
      gid_index_(static_cast<int>(options.config.gid_index)),
      seats_(options.seats),
      peers_(static_cast<size_t>(options.size)) {
  const Config& config = options.config;
  verbs::Selection selection = select_ports(config);
  if (seats_.port.empty()) warn_of_refused(selection, config);
  usable_ = ports_to_share(selection, options.arena.bytes());
  shared_.arena = &options.arena;
  shared_.ports.resize(usable_.size());
  shared_.lent =
      std::make_unique<rdma::Registrations>(static_cast<uint64_t>(config.register_bytes));
  shared_.slot_bytes = slot_bytes(config);
  shared_.most_bytes = options.arena.bytes();
  shared_.retry_seconds = verbs::retry_seconds(static_cast<int>(config.qp_timeout),
                                               static_cast<int>(config.qp_retries));
  shared_.traffic_class = config.traffic_class;
  shared_.service_level = config.service_level;
  shared_.qp_timeout = config.qp_timeout;
  shared_.qp_retries = config.qp_retries;
  auto interfaces = list_interfaces();
  for (size_t number = 0; number < usable_.size(); number++) {
    told_.push_back(own_address(number));
    told_.back().prefix_bits = static_cast<uint8_t>(prefix_bits_of(told_.back().gid, interfaces));
    told_.back().distance = distance_to(usable_[number]);
    told_.back().named = !config.devices.empty();
  }
  options.arena.prepare(options.arena.data(), options.arena.bytes());
  // Which of several is used, and whether others are, is known when all ranks are.
  if (usable_.size() == 1) open(0);
}

// What the firmware says of nodes is at most 254, and a node that is not known is far from all; but
// where there is one node, everything is near.
uint8_t VerbsTransport::distance_to(const verbs::UsablePort& port) const {
  constexpr int kFar = 255;
  if (!seats_.port.empty()) return names_of({&port, 1}) == seats_.port ? 0 : kFar;
  if (seats_.node_distances.size() < 2) return 0;
  auto found = seats_.node_distances.find(port.numa_node);
  return static_cast<uint8_t>(
      std::clamp(found == seats_.node_distances.end() ? kFar : found->second, 0, kFar));
}

// Once for each communicator, when the ports of all ranks are known that are reached.
void VerbsTransport::share_out() {
  if (std::exchange(shared_out_, true)) return;
  peer_of(rank_).ports = told_;
  std::vector<Rank> order = seats_.order;
  if (order.empty()) {
    order.resize(peers_.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::erase_if(order, [&](Rank rank) { return peer_of(rank).ports.empty(); });
  std::vector<rdma::Sharer> sharers;
  for (Rank rank : order) {
    int machine =
        seats_.machine_of.empty() ? rank : seats_.machine_of.at(static_cast<size_t>(rank));
    sharers.push_back({machine, peer_of(rank).ports});
  }
  auto shares = rdma::share_ports(sharers);
  for (size_t i = 0; i < order.size(); i++) peer_of(order[i]).share = shares[i];
  const Peer& self = peer_of(rank_);
  std::string network = rdma::network_of(self.ports, self.share);
  std::string why = fmt::format("at distance {} (10 is the rank's own NUMA node)",
                                self.ports[self.share].distance);
  if (!seats_.port.empty())
    why = "as in the whole";
  else if (seats_.node_distances.size() < 2)
    why = "as near as the others, for the rank runs on several NUMA nodes or there is one";
  log_debug("rank {} uses {} of {}: in {}, {}", rank_, text_of(self.ports[self.share]),
            names_of(usable_), network.empty() ? "a network that is not known" : network, why);
}

std::string VerbsTransport::port_of(Rank rank) {
  share_out();
  const Peer& peer = peer_of(rank);
  return peer.ports.empty() ? "" : place_of(peer.ports[peer.share]);
}

// By its number in this rank's list.
size_t VerbsTransport::port_to(Rank peer) {
  share_out();
  const Peer &self = peer_of(rank_), &other = peer_of(peer);
  rdma::Side mine{self.ports, self.share}, theirs{other.ports, other.share};
  return rank_ < peer ? join_ports(mine, theirs).lower : join_ports(theirs, mine).higher;
}

rdma::OpenPort& VerbsTransport::open(size_t number) {
  auto& port = shared_.ports.at(number);
  if (!port) {
    auto opened = std::make_unique<rdma::OpenPort>(usable_[number], *shared_.arena);
    shared_.lent->add(opened->domain);
    port = std::move(opened);
    events_.push_back(std::make_unique<verbs::EventThread>(
        port->context, [this, at = port.get()](const verbs::Event& event) { hear(*at, event); }));
  }
  return *port;
}

// A port that comes back before the queue pairs give up loses nothing; what is lost for good is
// told to the endpoints, which look before they wait again.
void VerbsTransport::hear(rdma::OpenPort& port, const verbs::Event& event) {
  using enum verbs::EventKind;
  if (event.kind == kDeviceFatal || event.kind == kCompletionQueueLost)
    port.fail(event.text());
  else if (event.kind == kQueuePairFatal || event.kind == kQueuePairAccess ||
           event.kind == kQueuePairRequest)
    log_warning("{}", event.text());  // its endpoint finds the completions that failed
  else if (event.kind == kPortDown)
    log_warning("{}; it is given up after {:.1f} s", event.text(), shared_.retry_seconds);
  else
    log_debug("{}", event.text());
}

// An address may have come or gone since the last queue pair was made; with a GID that is not the
// port's any more, a new one would reach nobody.
void VerbsTransport::read_port_again(rdma::OpenPort& open) const {
  verbs::UsablePort& used = open.port;
  verbs::Port port = verbs::read_port(open.context, used.port.number);
  verbs::GidChoice gid = verbs::choose_gid(port, {.index = gid_index_});
  if (!port.problem.empty() || gid.index < 0) {
    log_warning("{} is used as it was before it changed: {}", used.link().text(),
                port.problem.empty() ? gid.reason : port.problem);
    return;
  }
  if (gid.gid != used.gid.gid)
    log_info("{} has changed its address from {} to {}", used.link().text(), used.gid.gid.text(),
             gid.gid.text());
  used.port = std::move(port);
  used.gid = std::move(gid);
}

PortAddress VerbsTransport::own_address(size_t number) const {
  const auto& opened = shared_.ports[number];
  const verbs::UsablePort& port = opened ? opened->port : usable_[number];
  PortAddress address{.rank = rank_,
                      .slot_bytes = shared_.slot_bytes,
                      .mtu_bytes = port.port.active_mtu_bytes,
                      .lid = port.port.lid,
                      .link_layer = static_cast<uint8_t>(port.port.link_layer),
                      .gid_type = static_cast<uint8_t>(type_of(port)),
                      .gid = port.gid.gid};
  std::string place = names_of({&port, 1});
  std::memcpy(address.place, place.data(), std::min(place.size(), sizeof address.place - 1));
  return address;
}

std::string VerbsTransport::address() const {
  auto now = told_;
  for (size_t number = 0; number < now.size(); number++) now[number].gid = own_address(number).gid;
  return rdma::encode_ports(now);
}

// That packets really get through is shown when a pair connects, which the neighbours in the ring
// do before the first collective.
std::string VerbsTransport::reach(Rank peer, std::string_view text) {
  auto theirs = rdma::decode_ports(text);
  if (theirs.empty()) return "its address is not one of this version of ringcoll";
  if (theirs[0].rank != peer)
    return fmt::format("it is rank {} and not rank {}", theirs[0].rank, peer);
  auto [lower, higher] = rdma::join_ports({told_, 0}, {theirs, 0});
  std::string why = mismatch(theirs[higher], told_[lower]);
  // Also if it cannot be reached from here: all ranks share ports out alike, whom each reaches.
  peer_of(peer).ports = std::move(theirs);
  shared_out_ = false;
  return why;
}

std::unique_ptr<Endpoint> VerbsTransport::connect(Rank peer, Deadline deadline) {
  invariant(!peer_of(peer).ports.empty(), "verbs: rank {} is to be connected unreached", peer);
  size_t number = port_to(peer);
  rdma::OpenPort& port = open(number);
  read_port_again(port);
  auto endpoint = std::make_unique<rdma::VerbsEndpoint>(rank_, peer, shared_, port);
  endpoint->connect(dialer_.dial(peer, kFirstDataChannel, deadline), own_address(number), deadline);
  return endpoint;
}

}  // namespace

Probe probe_verbs(const Config& config) {
  try {
    auto ports = ports_to_share(select_ports(config), static_cast<size_t>(config.arena_bytes));
    const verbs::UsablePort& port = ports.front();
    verbs::Context context(port.device);
    verbs::ProtectionDomain domain(context);
    rdma::Registered memory(domain, probe_bytes(config), verbs::Access::kRemoteWrite);
    verbs::CompletionQueue queue(context, 16);
    verbs::QueuePair pair(domain, queue, queue, {.send_requests = 8, .receive_requests = 8});
    std::string detail =
        fmt::format("{}, {}, gid {} {}, MTU {} bytes, {:.0f} Gbit/s", port.link().text(),
                    name_of(port.port.link_layer), port.gid.index, port.gid.gid.text(),
                    port.port.active_mtu_bytes, port.port.gigabits);
    if (ports.size() > 1) detail += fmt::format("; the ranks of a host share {}", names_of(ports));
    return {true, detail};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

std::string verbs_found(const Config& config) {
  verbs::Survey survey = verbs::survey();
  return verbs::report_json(survey, verbs::select_ports(survey, config), config);
}

std::unique_ptr<Transport> make_verbs(const TransportOptions& options) {
  return std::make_unique<VerbsTransport>(options);
}

}  // namespace ringcoll

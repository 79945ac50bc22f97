#include "transport/verbs/verbs.h"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/ports.h"
#include "verbs/discovery.h"
#include "verbs/report.h"

namespace ringcoll {
namespace {

// Bytes that the probe registers if nothing limits locked memory.
constexpr size_t kProbeBytes = 64 << 10;
// Sockets of a link, over which its ends tell each other where their queue pairs and inboxes are.
constexpr size_t kSockets = 1;

// The probe asks the device for as much as the arena only if locked memory is limited, since
// registering touches all of the memory.
size_t probe_bytes(const Config& config) {
  bool limited = verbs::memlock_limit() != std::numeric_limits<uint64_t>::max();
  return limited ? static_cast<size_t>(config.arena_bytes) : kProbeBytes;
}

/// What the whole or a part has for itself: endpoints, what was lent to them, and its extent of the
/// arena. The extent is registered with the ports that it uses. One thread at a time.
class Links {
 public:
  Links(rdma::Ports& ports, Rank rank, std::span<std::byte> extent)
      : ports_(ports), rank_(rank), shared_(ports.settings(), extent, ports.watch()) {
    shared_.ports.resize(ports.count());
  }

  /// Uses the port from now on: registers the extent and lent memory with it.
  rdma::PortUse& use(size_t number);
  /// Connects through this port to a rank of the whole or the part.
  std::unique_ptr<Endpoint> connect(Rank peer, size_t number, std::vector<Fd> sockets,
                                    Deadline deadline);
  void lend(std::span<Loan> loans, size_t in_flight) { shared_.lent.lend(loans, in_flight); }
  /// As Transport::may_be_ready() and end_wait().
  bool may_be_ready(Sleep* sleep) {
    if (sleep) watch_ports(sleep->fds);
    bool any = false;
    for (rdma::VerbsEndpoint* endpoint : shared_.endpoints)
      any |= endpoint->may_be_ready(sleep ? &sleep->fds : nullptr);
    return any;
  }
  void end_wait() {
    for (rdma::VerbsEndpoint* endpoint : shared_.endpoints) endpoint->end_wait();
  }
  // Once a region is deregistered, neither a device nor a peer reaches it.
  void revoke() noexcept {
    for (rdma::VerbsEndpoint* endpoint : shared_.endpoints) endpoint->stop();
    shared_.lent.forget_all();
  }

 private:
  // Events of earlier sleeps mean nothing: the endpoints look at their queues after this.
  void watch_ports(std::vector<pollfd>& fds) {
    for (const auto& port : shared_.ports) {
      if (!port) continue;
      port->channel.drain();
      fds.push_back({port->channel.fd(), POLLIN, 0});
    }
  }

  rdma::Ports& ports_;
  const Rank rank_;
  rdma::Shared shared_;
};

rdma::PortUse& Links::use(size_t number) {
  auto& port = shared_.ports.at(number);
  if (!port) {
    auto used = std::make_unique<rdma::PortUse>(ports_.open(number), shared_.extent);
    shared_.lent.add(used->open.domain);
    port = std::move(used);
  }
  return *port;
}

std::unique_ptr<Endpoint> Links::connect(Rank peer, size_t number, std::vector<Fd> sockets,
                                         Deadline deadline) {
  invariant(sockets.size() == kSockets, "verbs: {} sockets for a link to rank {}", sockets.size(),
            peer);
  rdma::PortUse& port = use(number);
  port.open.read_again(shared_.settings.gid_index);
  auto endpoint = std::make_unique<rdma::VerbsEndpoint>(rank_, peer, shared_, port);
  auto mine = rdma::address_of(endpoint->port(), rank_, shared_.settings.slot_bytes);
  endpoint->connect(std::move(sockets[0]), mine, deadline);
  return endpoint;
}

/// The address of a part. The whole has told where the ports are.
struct VerbsPartAddress {
  uint32_t magic = rdma::kMagic;
  uint32_t version = rdma::kVersion;
  int32_t rank = 0;
};
static_assert(sizeof(VerbsPartAddress) <= kMaxPartAddressBytes);

class VerbsPart final : public Transport {
 public:
  VerbsPart(rdma::Ports& ports, const TransportPart& part)
      : ports_(ports),
        rank_(part.rank),
        members_(part.members),
        reached_(part.members.size()),
        links_(ports, part.rank, part.extent) {}

  std::string address() const override {
    VerbsPartAddress address{.rank = rank_};
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  }
  std::string reach(Rank peer, std::string_view text) override;
  size_t sockets_to(Rank /*peer*/) const override { return kSockets; }
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets, Deadline deadline) override;
  bool wants_places() const override { return true; }
  bool registers_extents() const override { return true; }
  bool connected_by(Rank /*peer*/) override { return false; }
  bool may_be_ready(Sleep* sleep) override { return links_.may_be_ready(sleep); }
  void end_wait() override { links_.end_wait(); }
  std::string port_of(Rank rank) override { return ports_.port_of(in_whole(rank)); }
  void lend(std::span<Loan> loans, size_t in_flight) override { links_.lend(loans, in_flight); }
  void revoke() noexcept override { links_.revoke(); }
  std::unique_ptr<Transport> part(const TransportPart&) override {
    throw Error(Code::kInternal, "verbs: a part has no parts");
  }

 private:
  Rank in_whole(Rank rank) const { return members_.at(static_cast<size_t>(rank)); }

  rdma::Ports& ports_;
  const Rank rank_;
  const std::vector<Rank> members_;
  std::vector<bool> reached_;
  Links links_;
};

std::string VerbsPart::reach(Rank peer, std::string_view text) {
  VerbsPartAddress theirs;
  if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
  std::memcpy(&theirs, text.data(), sizeof theirs);
  if (theirs.magic != rdma::kMagic || theirs.version != rdma::kVersion)
    return "its address is not one of this version of ringcoll";
  if (theirs.rank != peer)
    return fmt::format("it is rank {} of the group and not rank {}", theirs.rank, peer);
  if (!ports_.reached(in_whole(peer))) return "its ports are out of reach";
  reached_.at(static_cast<size_t>(peer)) = true;
  return "";
}

std::unique_ptr<Endpoint> VerbsPart::connect(Rank peer, std::vector<Fd> sockets,
                                             Deadline deadline) {
  invariant(reached_.at(static_cast<size_t>(peer)),
            "verbs: rank {} of a group is to be connected unreached", peer);
  return links_.connect(peer, ports_.port_to(in_whole(peer)), std::move(sockets), deadline);
}

class VerbsTransport final : public Transport {
 public:
  explicit VerbsTransport(const TransportOptions& options);

  std::string address() const override { return ports_.address(); }
  std::string reach(Rank peer, std::string_view text) override { return ports_.reach(peer, text); }
  size_t sockets_to(Rank /*peer*/) const override { return kSockets; }
  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> sockets,
                                    Deadline deadline) override {
    invariant(ports_.known(peer), "verbs: rank {} is to be connected unreached", peer);
    return links_.connect(peer, ports_.port_to(peer), std::move(sockets), deadline);
  }
  bool wants_places() const override { return true; }
  bool registers_extents() const override { return true; }
  std::string port_of(Rank rank) override { return ports_.port_of(rank); }
  bool may_be_ready(Sleep* sleep) override { return links_.may_be_ready(sleep); }
  void end_wait() override { links_.end_wait(); }
  void lend(std::span<Loan> loans, size_t in_flight) override { links_.lend(loans, in_flight); }
  void revoke() noexcept override { links_.revoke(); }
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<VerbsPart>(ports_, part);
  }

 private:
  rdma::Ports ports_;
  Links links_;
};

VerbsTransport::VerbsTransport(const TransportOptions& options)
    : ports_(options), links_(ports_, options.rank, options.own_arena()) {
  // If there are several ports, the ones that are used are known only when all ranks are.
  if (ports_.count() == 1) links_.use(0);
}

}  // namespace

Probe probe_verbs(const Config& config) {
  try {
    auto ports = rdma::find_ports(config, static_cast<size_t>(config.arena_bytes), false);
    const verbs::UsablePort& port = ports.front();
    verbs::Context context(port.device);
    verbs::ProtectionDomain domain(context);
    rdma::Registered memory(domain, probe_bytes(config), verbs::Access::kRemoteWrite);
    verbs::CompletionQueue queue(context, 16);
    verbs::QueuePair pair(domain, queue, queue, {.send_requests = 8, .receive_requests = 8});
    std::string detail =
        fmt::format("{}, {}, gid {} {}, MTU {} bytes, {:.0f} Gbit/s", port.port_id().text(),
                    name_of(port.port.link_layer), port.gid.index, port.gid.gid.text(),
                    port.port.active_mtu_bytes, port.port.gigabits);
    if (ports.size() > 1)
      detail += fmt::format("; the ranks of a host share {}", rdma::names_of(ports));
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

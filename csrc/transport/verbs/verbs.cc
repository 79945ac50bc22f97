#include "transport/verbs/verbs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/wire.h"
#include "verbs/discovery.h"
#include "verbs/events.h"
#include "verbs/report.h"
#include "verbs/selection.h"

namespace ringcoll {
namespace {

using rdma::Address;

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

/// The port that is used; throws Error(kTransport) that says why there is none.
verbs::UsablePort usable_port(const Config& config) {
  verbs::Survey survey = verbs::survey();
  verbs::Selection selection = verbs::select_ports(survey, config);
  check(!selection.usable.empty(), Code::kTransport, "{}", selection.why_none(survey));
  return selection.usable.front();
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

 private:
  void hear(const verbs::Event& event);
  void read_port_again();
  Address own_address() const;

  const Rank rank_;
  Dialer& dialer_;
  const int gid_index_;  // RINGCOLL_GID_INDEX
  rdma::Shared shared_;
  std::vector<bool> reached_;
  std::unique_ptr<verbs::EventThread> events_;  // last: it uses the others
};

VerbsTransport::VerbsTransport(const TransportOptions& options)
    : rank_(options.rank),
      dialer_(options.dialer),
      gid_index_(static_cast<int>(options.config.gid_index)),
      reached_(static_cast<size_t>(options.size)) {
  const Config& config = options.config;
  shared_.port = usable_port(config);
  shared_.context = verbs::Context(shared_.port.device);
  shared_.domain = verbs::ProtectionDomain(shared_.context);
  shared_.channel = verbs::CompletionChannel(shared_.context);
  shared_.arena = &options.arena;
  options.arena.prepare(options.arena.data(), options.arena.bytes());
  shared_.arena_region = verbs::MemoryRegion(shared_.domain, options.arena.data(),
                                             options.arena.bytes(), verbs::Access::kRemoteWrite);
  shared_.landing = std::make_unique<rdma::Landing>(shared_.domain);
  shared_.lent = std::make_unique<rdma::Registrations>(
      shared_.domain, static_cast<uint64_t>(config.register_bytes));
  shared_.slot_bytes = slot_bytes(config);
  shared_.most_bytes = options.arena.bytes();
  shared_.retry_seconds = verbs::retry_seconds(static_cast<int>(config.qp_timeout),
                                               static_cast<int>(config.qp_retries));
  shared_.traffic_class = config.traffic_class;
  shared_.service_level = config.service_level;
  shared_.qp_timeout = config.qp_timeout;
  shared_.qp_retries = config.qp_retries;
  events_ = std::make_unique<verbs::EventThread>(
      shared_.context, [this](const verbs::Event& event) { hear(event); });
}

// A port that comes back before the queue pairs give up loses nothing; what is lost for good is
// told to the endpoints, which look before they wait again.
void VerbsTransport::hear(const verbs::Event& event) {
  using enum verbs::EventKind;
  if (event.kind == kDeviceFatal || event.kind == kCompletionQueueLost)
    shared_.fail(event.text());
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
void VerbsTransport::read_port_again() {
  verbs::UsablePort& used = shared_.port;
  verbs::Port port = verbs::read_port(shared_.context, used.port.number);
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

Address VerbsTransport::own_address() const {
  const verbs::UsablePort& port = shared_.port;
  Address address{.rank = rank_,
                  .slot_bytes = shared_.slot_bytes,
                  .mtu_bytes = port.port.active_mtu_bytes,
                  .lid = port.port.lid,
                  .link_layer = static_cast<uint8_t>(port.port.link_layer),
                  .gid_type = static_cast<uint8_t>(type_of(port)),
                  .gid = port.gid.gid};
  std::string place = fmt::format("{}:{}", port.device, port.port.number);
  std::memcpy(address.place, place.data(), std::min(place.size(), sizeof address.place - 1));
  return address;
}

std::string VerbsTransport::address() const {
  Address address = own_address();
  return std::string(reinterpret_cast<const char*>(&address), sizeof address);
}

// That packets really get through is shown when a pair connects, which the neighbours in the ring
// do before the first collective.
std::string VerbsTransport::reach(Rank peer, std::string_view text) {
  Address theirs;
  if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
  std::memcpy(&theirs, text.data(), sizeof theirs);
  std::string why = mismatch(theirs, own_address());
  if (!why.empty()) return why;
  if (theirs.rank != peer) return fmt::format("it is rank {} and not rank {}", theirs.rank, peer);
  reached_.at(static_cast<size_t>(peer)) = true;
  return "";
}

std::unique_ptr<Endpoint> VerbsTransport::connect(Rank peer, Deadline deadline) {
  invariant(reached_.at(static_cast<size_t>(peer)), "verbs: rank {} is to be connected unreached",
            peer);
  read_port_again();
  auto endpoint = std::make_unique<rdma::VerbsEndpoint>(rank_, peer, shared_);
  endpoint->connect(dialer_.dial(peer, kFirstDataChannel, deadline), own_address(), deadline);
  return endpoint;
}

}  // namespace

Probe probe_verbs(const Config& config) {
  try {
    verbs::UsablePort port = usable_port(config);
    verbs::Context context(port.device);
    verbs::ProtectionDomain domain(context);
    rdma::Registered memory(domain, probe_bytes(config), verbs::Access::kRemoteWrite);
    verbs::CompletionQueue queue(context, 16);
    verbs::QueuePair pair(domain, queue, queue, {.send_requests = 8, .receive_requests = 8});
    return {true, fmt::format("{}, {}, gid {} {}, MTU {} bytes, {:.0f} Gbit/s", port.link().text(),
                              name_of(port.port.link_layer), port.gid.index, port.gid.gid.text(),
                              port.port.active_mtu_bytes, port.port.gigabits)};
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

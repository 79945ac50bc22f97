// The ports that a rank may use, which of them join it to which ranks, and those that are open. The
// whole and its parts share this; Links in verbs.cc is what each has for itself.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/endpoint.h"
#include "transport/verbs/open_port.h"
#include "transport/verbs/wire.h"
#include "verbs/selection.h"

namespace ringcoll::rdma {

/// The ports that the ranks of a host share out, as many as may lock `arena_bytes` each. `warn`:
/// logs those that RINGCOLL_DEVICES names and that are not used. Throws Error(kTransport) that says
/// why there is none.
std::vector<verbs::UsablePort> find_ports(const Config& config, size_t arena_bytes, bool warn);
/// "fake0:1, fake1:1"
std::string names_of(std::span<const verbs::UsablePort> ports);
/// What peers are told of a port of this rank.
Address address_of(const verbs::UsablePort& port, Rank rank, uint32_t slot_bytes);

/// All ranks are those of the whole. reach() is called only before there are parts. Any thread may
/// call the other functions.
class Ports {
 public:
  /// Throws Error(kTransport).
  explicit Ports(const TransportOptions& options);

  const Settings& settings() const { return settings_; }
  CommonWatch& watch() { return watch_; }
  size_t count() const { return usable_.size(); }
  std::string address() const;
  std::string reach(Rank peer, std::string_view text);
  /// Whether reach() has returned "" for the peer.
  bool reached(Rank peer) const { return peers_.at(static_cast<size_t>(peer)).reached; }
  /// Whether the peer's ports are known, even if it is not reached.
  bool known(Rank peer) const { return !peers_.at(static_cast<size_t>(peer)).ports.empty(); }
  std::string port_of(Rank rank);
  /// The number of the port of this rank that joins it to the peer.
  size_t port_to(Rank peer);
  /// Opens the port when it is first asked for. Throws Error(kTransport).
  OpenPort& open(size_t number);

 private:
  /// The ports that a rank may use, as it told; empty if nothing is known of it.
  struct Peer {
    std::vector<Address> ports;
    size_t share = 0;  // its port, as index; valid after share_out()
    bool reached = false;
  };
  Peer& peer_of(Rank rank) { return peers_.at(static_cast<size_t>(rank)); }
  uint8_t distance_to(const verbs::UsablePort& port) const;
  void share_out();

  const Rank rank_;
  const Settings settings_;
  const Seats seats_;
  std::vector<verbs::UsablePort> usable_;
  std::vector<Address> told_;  // the ports, as all ranks know them
  std::vector<Peer> peers_;    // by rank, this one too
  CommonWatch watch_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<OpenPort>> open_;  // by number; guarded by mutex_, as shares are
  bool shared_out_ = false;
};

}  // namespace ringcoll::rdma

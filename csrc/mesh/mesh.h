// The mesh of a job: its ranks and their places, a transport for each pair, the costs of links, the
// lifelines, and memory that peers can read. Calls run in groups of its ranks (mesh/group/group.h).
// The mesh itself knows only the group of all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "bootstrap/exchange.h"
#include "connect/connector.h"
#include "life/lifelines.h"
#include "mesh/extents.h"
#include "mesh/group_sizes.h"
#include "mesh/reach.h"
#include "net/event_loop.h"
#include "shm/bell.h"
#include "shm/shared_memory.h"
#include "topology/costs.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

class Group;
struct Addresses;
struct Answer;
struct Introduction;

/// Ranks are mesh ranks. Methods are thread-safe unless noted.
class Mesh {
 public:
  /// The number of all_gather rounds that the constructor makes.
  static constexpr int kExchanges = 4;
  /// Collective over the exchange; it succeeds on all ranks or on none. Throws Error that names
  /// what could not be agreed on or reached, and the remedy.
  Mesh(Config config, Exchange& exchange);
  ~Mesh();
  /// Called instead of the constructor when this rank cannot start. Tells the other ranks why, and
  /// returns the error that all ranks are to raise.
  static Error refuse(Exchange& exchange, const Config& config, const Error& error);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Rank rank() const { return rank_; }
  Rank size() const { return size_; }
  const Config& config() const { return config_; }
  const Topology& topology() const { return *topology_; }
  const Costs& costs() const { return costs_; }          // agreed
  double measuring_ms() const { return measuring_ms_; }  // how long this rank measured links
  /// The networks in use, "10.0.0.0/24 (eth0, 118 MB/s)".
  std::string network() const { return connector_->network(); }
  uint64_t rejected_connections() const { return connector_->rejected(); }

  /// The transport between this rank and a peer.
  struct Link {
    const TransportRow* row = nullptr;  // null: the rank itself
    Transport* transport = nullptr;
  };
  const Link& link(Rank peer) const { return links_[peer]; }

  /// The group of all ranks.
  Group& whole() { return *whole_; }

  // The rest of the public part serves groups.

  /// The arena begins with the memory of the group of all ranks. Its calls have the first
  /// `Config::arena_bytes`, and its messages have the bytes behind them. The extents follow.
  SharedMemory& arena() { return arena_; }
  std::span<std::byte> memory_for_calls() const;
  std::span<std::byte> memory_for_messages() const;
  /// Extents of the other groups: for short calls, for longer calls, and for messages.
  Extents& short_extents() { return *short_extents_; }
  Extents& call_extents() { return *call_extents_; }
  Extents& message_extents() { return *message_extents_; }
  /// The region of the first two.
  std::span<std::byte> extents_for_calls() const {
    std::span<std::byte> first = short_extents_->region(), then = call_extents_->region();
    return {first.data(), first.size() + then.size()};
  }
  /// Tells transports to free what they keep for processes that have ended. Groups call it when
  /// they are made and when they end.
  void forget_lost();
  /// A number that no group has had. A group uses the number of its lowest rank.
  GroupNumber new_group_number();
  Lifelines& lifelines() { return *lifelines_; }
  Connector& connector() { return *connector_; }
  /// What peers on the host wake this process by, for all groups.
  Bells& bells() { return bells_; }
  /// Begins to make the lifeline of the pair, and never blocks. It counts for all groups, but
  /// Connector::interrupt() of `group` ends the attempt. `done` is called once, on any thread, when
  /// there is a lifeline or the attempt has failed. There may be several attempts at a time.
  using LifelineDone = std::function<void(const std::optional<Unmade>&)>;
  void begin_lifeline(Rank peer, GroupNumber group, Connector::Ends ends, Deadline deadline,
                      LifelineDone done);
  /// The port through which a rank reaches other hosts, "mlx5_0:1"; "" if links have no ports.
  std::string port_of(Rank rank) const;

 private:
  void join_ring();
  std::vector<Rank> neighbours() const;
  void make_whole(bool one_domain);
  void wake_whole();
  Error fail(const Error& error);
  std::optional<Error> attempt(const std::function<void()>& body);
  std::vector<std::string> round(Exchange& exchange, const std::string& mine,
                                 const std::optional<Error>& failure, Deadline deadline) const;
  Introduction introduce();
  struct Met;
  void agree(Exchange& exchange, Introduction mine, Deadline deadline);
  Introduction introduce_again();
  void tell_neighbours(const Error& error);
  void add_lifeline(Rank peer, Fd fd);
  void watch_health();
  void make_arena(const GroupSizes& sizes);
  Seats seats() const;
  static void finish(Exchange& exchange);
  void make_transports(Exchange& exchange, Deadline deadline);
  bool make_transport(const TransportRow& row, const TransportOptions& options, bool named);
  void settle_networks(const std::vector<Addresses>& addresses);
  void choose_links(Exchange& exchange, const std::vector<Addresses>& addresses,
                    const std::vector<const TransportRow*>& rows, Deadline deadline);
  Answer look_around(const std::vector<Addresses>& addresses,
                     const std::vector<const TransportRow*>& rows);
  TransportBits reach_one(Rank peer, const Addresses& theirs,
                          const std::vector<const TransportRow*>& rows, std::string* reasons);
  void assign_links(std::vector<Answer> answers, const std::vector<const TransportRow*>& rows);
  void settle_hosts(const Reach& reach, const std::vector<Answer>& answers);
  static std::string reasons(Rank a, Rank b, const std::vector<Answer>& answers);
  Error no_link(Rank a, Rank b, const std::vector<Answer>& answers) const;
  class Measured;
  void adopt_given_costs(const std::vector<Introduction>& introductions);
  void check_given_levels() const;
  void settle_costs(Exchange& exchange);
  std::vector<LevelSamples> measure_costs(const std::vector<bool>& wanted);

  // Members are destroyed from the last to the first. Lifelines go before channels, so peers read
  // that this rank leaves before its channels close. Channels go before transports, and both before
  // the threads and the memory that they use.
  Config config_;
  Rank rank_;
  Rank size_;
  std::shared_ptr<const Topology> topology_;  // shared: it is large for thousands of ranks
  Costs costs_;                               // until settle_costs(): given costs only
  std::string costs_file_;                    // "RINGCOLL_COSTS=…" of rank 0
  double measuring_ms_ = 0;
  size_t group_bytes_ = 0;  // agreed: address space that each rank affords for groups
  SharedMemory arena_;
  Bells bells_;
  std::unique_ptr<Extents> short_extents_, call_extents_, message_extents_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<Transport>> made_;
  std::vector<Link> links_;
  std::set<Transport*> far_;  // those of links of class kNetwork
  std::unique_ptr<Group> whole_;
  std::mutex whole_mutex_;  // orders its construction and wake_whole()
  std::unique_ptr<Lifelines> lifelines_;
  std::unique_ptr<Health> health_;  // of the group of all ranks
  bool ring_is_joined_ = false;

  mutable std::mutex groups_mutex_;
  uint32_t groups_made_ = 0;
  /// The last member: connections in the making use all others, so their end is awaited first.
  struct EndOfConnections {
    std::unique_ptr<Connector>& connector;
    ~EndOfConnections();
  } end_of_connections_{connector_};
};

}  // namespace ringcoll

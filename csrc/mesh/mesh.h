// What joins the ranks of a job: who they are and where, a transport for each pair, what links
// cost, who is alive, and memory that peers can read. Calls are made in groups of its ranks
// (mesh/group.h), of which it knows the one of all.
#pragma once

#include <condition_variable>
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
#include "bootstrap/connector.h"
#include "bootstrap/exchange.h"
#include "mesh/extents.h"
#include "mesh/group_sizes.h"
#include "mesh/lifelines.h"
#include "mesh/reach.h"
#include "net/event_loop.h"
#include "shm/shared_memory.h"
#include "topology/costs.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

class Group;
struct Addresses;
struct Answer;
struct Introduction;

/// Ranks are the mesh's. What is not said to be for one thread is for any.
class Mesh {
 public:
  /// Rounds of all_gather that the constructor makes.
  static constexpr int kExchanges = 4;
  /// Collective over the exchange. Throws Error naming what could not be agreed or reached, and the
  /// remedy. On all ranks or on none.
  Mesh(Config config, Exchange& exchange);
  ~Mesh();
  /// Instead of one: this rank cannot start, and tells the others why. What all are to raise.
  static Error refuse(Exchange& exchange, const Config& config, const Error& error);
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Rank rank() const { return rank_; }
  Rank size() const { return size_; }
  const Config& config() const { return config_; }
  const Topology& topology() const { return *topology_; }
  const Costs& costs() const { return costs_; }          // agreed
  double measuring_ms() const { return measuring_ms_; }  // how long this rank took to measure them
  bool oversubscribed() const { return oversubscribed_; }  // some host has more ranks than cores
  /// The networks that are used, "10.0.0.0/24 (eth0, 118 MB/s)".
  std::string network() const { return connector_->network(); }
  uint64_t rejected_connections() const { return connector_->rejected(); }

  /// What joins this rank and another.
  struct Link {
    const TransportRow* row = nullptr;  // null: to itself
    Transport* transport = nullptr;
  };
  const Link& link(Rank peer) const { return links_[peer]; }

  /// The group of all ranks.
  Group& whole() { return *whole_; }

  // What groups need.

  /// The whole's memory: for its calls the first `Config::arena_bytes`, for its messages what is
  /// behind that. The rest is of the extents below.
  SharedMemory& arena() { return arena_; }
  std::span<std::byte> memory_for_calls() const;
  std::span<std::byte> memory_for_messages() const;
  /// Of groups: for their short calls, for the others, and for messages.
  Extents& short_extents() { return *short_extents_; }
  Extents& call_extents() { return *call_extents_; }
  Extents& message_extents() { return *message_extents_; }
  /// Where the first two are.
  std::span<std::byte> extents_for_calls() const {
    std::span<std::byte> first = short_extents_->region(), then = call_extents_->region();
    return {first.data(), first.size() + then.size()};
  }
  /// Has transports keep nothing any more for processes that have ended. To be called when a group
  /// is made or ends.
  void forget_lost();
  /// For a group of which this rank is the lowest: no group has had it.
  GroupNumber new_group_number();
  Lifelines& lifelines() { return *lifelines_; }
  Connector& connector() { return *connector_; }
  /// A lifeline to the peer: there is one, or a thread makes it, be it another or this one, which
  /// then says end_lifeline() when it is made or given up (mesh/opening.h).
  enum class Line : uint8_t { kThere, kAnothers, kClaimed };
  Line claim_lifeline(Rank peer);
  void end_lifeline(Rank peer);
  /// Until one that a thread makes is made or given up, or `limit` has passed.
  void wait_for_lifelines(Duration limit);
  /// Has one made if there is none, without a group, and does not wait for it: whoever of the two
  /// asks first has it made. `done` is called, on any thread, when it is made or given up. False:
  /// there is one, or it is made by others, and `done` is not called. Never blocks.
  using Called = std::function<void(const std::optional<Unmade>&)>;
  bool call_lifeline(Rank peer, Duration patience, Called done);
  /// The same for who is not told.
  void call_lifeline(Rank peer);
  /// The port by which a rank reaches other hosts, "mlx5_0:1"; "" if links have none of their own.
  std::string port_of(Rank rank) const { return far_ ? far_->port_of(rank) : ""; }

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

  // Destroyed from the last to the first: lifelines, so that peers read that this rank leaves
  // before its channels close; those before transports, both before the threads and the memory they
  // use.
  Config config_;
  Rank rank_;
  Rank size_;
  std::shared_ptr<const Topology> topology_;  // of thousands of ranks it is large
  Costs costs_;                               // until settle_costs(): those that need no measuring
  std::string costs_file_;                    // "RINGCOLL_COSTS=…" of rank 0
  double measuring_ms_ = 0;
  size_t group_bytes_ = 0;  // agreed: addresses that a rank can afford for groups
  SharedMemory arena_;
  std::unique_ptr<Extents> short_extents_, call_extents_, message_extents_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<Transport>> made_;
  std::vector<Link> links_;
  Transport* far_ = nullptr;  // of the links of class kNetwork; null: there are none
  bool oversubscribed_ = false;
  std::unique_ptr<Group> whole_;
  std::mutex whole_mutex_;  // making it against wake_whole() of another thread
  std::unique_ptr<Lifelines> lifelines_;
  std::unique_ptr<Health> health_;  // of the whole
  bool ring_is_joined_ = false;

  mutable std::mutex groups_mutex_;
  uint32_t groups_made_ = 0;
  std::mutex lines_mutex_;
  std::condition_variable lines_changed_;
  std::set<Rank> dialling_;  // lifelines that a thread makes
  /// The last: what is made aside uses the rest.
  struct EndOfCalls {
    std::unique_ptr<Connector>& connector;
    ~EndOfCalls();
  } end_of_calls_{connector_};
};

}  // namespace ringcoll

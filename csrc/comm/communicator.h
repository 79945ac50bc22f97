// A communicator: a rank, a size, endpoints made on demand, deadlines and poison. It knows nothing
// of collectives.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "bootstrap/connector.h"
#include "bootstrap/exchange.h"
#include "comm/lifelines.h"
#include "net/event_loop.h"
#include "shm/shared_memory.h"
#include "topology/costs.h"
#include "topology/spread.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace ringcoll {

/// Counted by one thread at a time, read by any.
class Count {
 public:
  Count() = default;
  Count(const Count& other) : value_(other) {}
  Count& operator=(const Count& other) {
    value_.store(other, std::memory_order_relaxed);
    return *this;
  }
  Count& operator+=(uint64_t more) {
    value_.store(*this + more, std::memory_order_relaxed);
    return *this;
  }
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// Of one communicator since it was made; written by the thread that executes.
struct Counters {
  Count calls;
  Count messages_sent;
  Count bytes_sent;
  Count bytes_sent_zero_copy;  // of them, from the caller's memory
  Count bytes_received;
  Count bytes_packed;    // copied from inputs into the arena
  Count bytes_unpacked;  // copied to outputs
  Count bytes_combined;  // written by a reduction
  Count blocked_waits;   // waits that stopped polling and blocked
  Count cpu_moves;       // moves to another CPU than that of the rank waited for
};

class Communicator {
 public:
  /// Rounds of all_gather that the constructor makes.
  static constexpr int kExchanges = 4;

  /// Collective over the exchange. Throws Error naming what could not be agreed or reached, and the
  /// remedy. `whole` (may be null; needed here only) is the communicator that this one is a part
  /// of: its places and costs are not looked for again. On all ranks or on none.
  Communicator(Config config, std::string name, Exchange& exchange,
               const Communicator* whole = nullptr);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return rank_; }
  Rank size() const { return size_; }
  const std::string& name() const { return name_; }
  const Config& config() const { return config_; }  // agreed
  const Topology& topology() const { return topology_; }
  SharedMemory& arena() { return arena_; }
  Counters& counters() { return counters_; }
  const Costs& costs() const { return costs_; }          // agreed
  double measuring_ms() const { return measuring_ms_; }  // how long this rank took to measure them
  bool oversubscribed() const { return oversubscribed_; }  // some host has more ranks than cores
  /// The networks that are used, "10.0.0.0/24 (eth0, 118 MB/s)".
  std::string network() const { return connector_->network(); }
  uint64_t rejected_connections() const { return connector_->rejected(); }
  /// The transport of the pair, "shm"; known from the start.
  std::string_view transport_of(Rank peer) const;
  LinkClass link_of(Rank peer) const;
  /// The port by which a rank reaches other hosts, "mlx5_0:1"; "" if links have none of their own.
  std::string port_of(Rank rank) const;
  /// Every pair by shared memory, or inside one process.
  bool one_domain() const { return one_domain_; }
  /// Whether what a link receives is wanted ahead (Endpoint::expect).
  bool wants_places() const { return wants_places_; }

  // The rest is for the thread that executes (one at a time; the engine sees to it).

  /// Connects to those of `peers` that are not connected yet: first to the higher ranks, whose
  /// event loops answer without their main threads, then waits for the lower ones; so ranks that
  /// connect to one another cannot deadlock.
  void connect(std::span<const Rank> peers);
  /// The link to a peer that is connected.
  Endpoint& endpoint(Rank peer) { return *links_[peer].endpoint; }
  /// Hands queued sends to the operating system, so that peers get them while this rank does
  /// something else.
  void flush(const std::function<std::string()>& doing);
  /// Offers the memory of the call that begins to the network: what is granted can be sent to, and
  /// received from, ranks with links of class kNetwork without a copy.
  void lend(std::span<Loan> loans) {
    if (far_) far_->lend(loans);
  }
  /// Poisons with `error`, unless the cause behind it (a peer that closed after an error of its
  /// own) arrives first. What was lent is not touched any more. Returns the error to raise.
  Error fail(const Error& error);
  /// Polls, then blocks, until ready() is true. Moves the other links' sends meanwhile. Throws the
  /// poison, or at the deadline poisons with Timeout blaming the rank that does not answer; `doing`
  /// is called for the message only.
  template <typename Ready, typename Doing>
  void wait(Rank peer, Endpoint& link, Ready&& ready, Doing&& doing) {
    for (int i = first_polls(peer); i > 0; i--)
      if (ready()) return;
    wait_slowly(peer, link, std::ref(ready), std::ref(doing));
  }
  /// Throws the first error if there is one.
  void throw_if_poisoned() const {
    if (lifelines_->poisoned()) [[unlikely]]
      throw lifelines_->error();
  }
  /// First error wins; flooded to all ranks. Any thread.
  void poison(const Error& error) { lifelines_->poison(error); }
  bool poisoned() const { return lifelines_->poisoned(); }
  Error error() const { return lifelines_->error(); }

 private:
  using Json = nlohmann::json;
  static constexpr int kFirstPolls = 64;
  /// Polls before the first look at the clock. A poll of tcp is a system call: on a CPU that ranks
  /// share, 64 of them keep the peer from running for 100 us before they give way.
  int first_polls(Rank peer) const {
    return yield_ && link_of(peer) == LinkClass::kNetwork ? 1 : kFirstPolls;
  }
  struct Link {
    const TransportRow* row = nullptr;
    Transport* transport = nullptr;
    std::unique_ptr<Endpoint> endpoint;
  };
  struct Introduction;
  class Measured;
  struct Farewell;

  void join_ring();
  std::vector<Rank> neighbours() const;
  void add_lifeline(Rank peer, Deadline deadline);
  void set_up(Rank peer, bool (Endpoint::*step)(Deadline), Deadline deadline);
  void drain(Rank peer, Deadline deadline);
  void wait_slowly(Rank peer, Endpoint& link, const std::function<bool()>& ready,
                   const std::function<std::string()>& doing);
  bool move_away_from(const Endpoint& link);
  void throw_if_gone(Rank peer, Farewell* farewell) const;
  bool progress_others(const Endpoint* but);
  void wake_all();
  void connect_one(Rank peer, Deadline deadline);
  void waiting_for(Rank peer, const std::function<void()>& body);
  std::optional<Error> attempt(const std::function<void()>& body);
  std::vector<Json> round(Exchange& exchange, Json mine, const std::optional<Error>& failure,
                          Deadline deadline) const;
  void agree(Exchange& exchange, const Communicator* whole, Deadline deadline);
  Seats seats(const Communicator* whole) const;
  void make_transports(Exchange& exchange, const Communicator* whole, Deadline deadline);
  bool make_transport(const TransportRow& row, const TransportOptions& options, bool named);
  void for_each_pair(const std::function<void(Rank, Rank)>& visit) const;
  void settle_networks(const std::vector<Json>& introductions);
  void choose_links(Exchange& exchange, const std::vector<Json>& introductions,
                    const std::vector<const TransportRow*>& rows, Deadline deadline);
  Json look_around(const std::vector<Json>& introductions,
                   const std::vector<const TransportRow*>& rows);
  void assign_links(const std::vector<Json>& answers, const std::vector<const TransportRow*>& rows);
  void settle_hosts(const std::vector<std::string>& masks, const std::vector<Json>& answers);
  static std::string reasons(Rank a, Rank b, const std::vector<Json>& answers);
  Error no_link(Rank a, Rank b, const std::vector<Json>& answers) const;
  void adopt_given_costs(const std::vector<Json>& introductions);
  void check_given_levels() const;
  void settle_costs(Exchange& exchange);
  std::vector<LevelSamples> measure_costs(const std::vector<bool>& wanted);
  std::string ports_of_this_host() const;
  void say_hello() const;

  // Destroyed from the last to the first: links before transports, both before the threads and the
  // memory they use.
  Config config_;
  std::string name_;
  Rank rank_;
  Rank size_;
  Topology topology_;
  Counters counters_;
  Costs costs_;             // until settle_costs(): those that need no measuring
  std::string costs_file_;  // "RINGCOLL_COSTS=…" of rank 0
  double measuring_ms_ = 0;
  SharedMemory arena_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Connector> connector_;
  std::vector<std::unique_ptr<Transport>> made_;
  std::vector<Link> links_;
  Transport* far_ = nullptr;  // of the links of class kNetwork; null: there are none
  bool wants_places_ = false;
  bool one_domain_ = false;
  bool oversubscribed_ = false;
  std::vector<Rank> connected_;
  std::mutex links_mutex_;  // making an endpoint against wake_all() of another thread
  Duration spin_{};
  Spreader spreader_;
  bool yield_ = false;  // more ranks than cores on this host: polling gives the core away
  std::unique_ptr<Lifelines> lifelines_;
};

}  // namespace ringcoll

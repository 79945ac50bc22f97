// RDMA of an agent: its ports, the keys of its regions, and the queue pairs that join it to peers.
//
// The ends of a link for payload tell each other their ports in the hello, and compute from them
// which two ports join them. If there are such, the end that made the link offers a queue pair, and
// the link is used for payload only when both know whether there is one. A queue pair that fails
// later leaves its chunks to the link, and is made anew.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "net/event_loop.h"
#include "remote/dispatcher.h"
#include "remote/link.h"
#include "remote/rdma_keys.h"
#include "remote/rdma_memory.h"
#include "remote/rdma_pair.h"
#include "verbs/selection.h"

namespace ringcoll::remote {

class Rdma final : private RdmaPair::Listener {
 public:
  /// By RINGCOLL_TRANSPORT. Null if it names another transport, or if this host has no usable port.
  /// Throws Error(kTransport) if RINGCOLL_TRANSPORT=verbs and there is none. `agent`: the id of
  /// this one. The others outlive it, but for the loop, which ends after close() and before this.
  static std::unique_ptr<Rdma> open(const Config& config, uint64_t agent, Regions& regions,
                                    Dispatcher& dispatcher, EventLoop& loop);
  ~Rdma() override;
  /// Destroys all queue pairs. Not on the loop's thread.
  void close();

  /// What peers are told in the hello. Any thread.
  std::string ports() const;
  /// No device reads or writes the region once this has returned. As RdmaKeys::forget(). Any
  /// thread.
  void forget(const Region& region);

  // On the loop's thread.

  /// A link for payload is open. The dispatcher gets it, with a queue pair if there can be one.
  /// `ports`: of the peer; empty: it has none.
  void join(const std::shared_ptr<Link>& link, std::string_view ports);
  /// A frame of RDMA.
  void take(Link& link, const FrameHead& head, const std::string& body);
  /// A link has ended.
  void left(const Link& link);
  /// This process was stopped for so long: devices could not be seen to work.
  void excuse(Duration lag);

 private:
  /// kUsable: the dispatcher has the queue pair.
  enum class Stage : uint8_t { kNone, kSettingUp, kUsable };
  /// A link and its queue pair.
  struct Joined {
    std::shared_ptr<Link> link;
    std::vector<rdma::Address> ports;  // the peer's
    uint64_t number = 0;               // of the newest queue pair
    std::shared_ptr<RdmaPair> pair;    // null: not yet, or none
    Stage stage = Stage::kNone;
    bool is_settled = false;  // the dispatcher has the link
    bool has_worked = false;  // some queue pair was usable
    int failures = 0;         // of queue pairs since
  };
  using Made = std::function<void(Joined& joined)>;

  Rdma(const Config& config, uint64_t agent, std::vector<verbs::UsablePort> ports, Regions& regions,
       Dispatcher& dispatcher, EventLoop& loop);

  // RdmaPair::Listener.
  void slowly(std::function<void()> task) override;
  void proven(RdmaPair& pair) override;
  void ended(RdmaPair& pair, const std::string& why) override;

  Joined* find(const Link& link, uint64_t number);
  size_t port_to(const Joined& joined) const;
  std::shared_ptr<rdma::OpenPort> open_port(size_t number);
  std::shared_ptr<RdmaPair> make_pair(const std::shared_ptr<Link>& link, size_t port,
                                      uint64_t number);
  void offer(Joined& joined);
  void take_setup(Joined& joined, const FrameHead& head, const std::string& body);
  void take_key(Joined& joined, const FrameHead& head, const std::string& body);
  void take_offer(Joined& joined, const FrameHead& head, const std::string& body);
  void take_answer(Joined& joined, const std::string& body);
  void give_key(const std::shared_ptr<Link>& link, size_t port, const FrameHead& head);
  void prepare(const Joined& joined, std::function<std::shared_ptr<RdmaPair>()> slow,
               FrameKind says);
  void use(Joined& joined);
  void do_without(Joined& joined, const std::string& why);
  void settle(Joined& joined);
  void try_again(Joined& joined);

  const Config config_;
  const uint64_t agent_;
  const bool is_only_way_;  // RINGCOLL_TRANSPORT=verbs
  const std::vector<verbs::UsablePort> usable_;
  std::vector<rdma::Address> told_;
  Dispatcher& dispatcher_;
  EventLoop& loop_;
  RdmaMemory memory_;
  RdmaKeys keys_;
  std::vector<std::shared_ptr<rdma::OpenPort>> open_;  // by number; for the thread slow_

  // On the loop's thread.
  std::map<const Link*, Joined> joined_;
  bool is_closed_ = false;
  bool has_told_ = false;  // that a peer is not reached by RDMA

  std::mutex slow_mutex_;
  std::unique_ptr<EventLoop> slow_;  // its thread sets up and registers; null: closed
};

}  // namespace ringcoll::remote

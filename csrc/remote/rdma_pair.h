// A queue pair that joins this agent to another one, beside the link over which both have set it
// up. Chunks of copies are RDMA reads and writes, which the owner of the region takes no part in,
// but for the key, which it is asked for once over the link.
//
// A queue pair fails as a whole: also when the owner closes a region of which a read is in flight.
// The chunks then go back to the dispatcher, and over the link they find out what became of the
// region. They go back only when the queue pair is destroyed, after which its device touches no
// memory of theirs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "net/event_loop.h"
#include "remote/carrier.h"
#include "remote/dispatcher.h"
#include "remote/link.h"
#include "remote/rdma_keys.h"
#include "remote/rdma_memory.h"
#include "remote/rdma_wire.h"
#include "transport/verbs/open_port.h"
#include "verbs/queue_pair.h"

namespace ringcoll::remote {

/// Any thread, unless a comment says otherwise.
class RdmaPair final : public Carrier, public std::enable_shared_from_this<RdmaPair> {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    /// Runs a task that may take long, on a thread for that; or drops it, when the agent closes.
    virtual void slowly(std::function<void()> task) = 0;
    /// The proof has passed. On the loop's thread.
    virtual void proven(RdmaPair& pair) = 0;
    /// The queue pair is destroyed. Once, later, on the loop's thread.
    virtual void ended(RdmaPair& pair, const std::string& why) = 0;
  };
  struct Context {
    EventLoop& loop;
    Dispatcher& dispatcher;
    Listener& listener;
    RdmaMemory& memory;
    const Config& config;
    bool is_only_way;  // a chunk that it cannot carry fails, and does not go over the link
  };

  /// Makes this end; takes long. `number`: tells it from other pairs of the link. Throws
  /// Error(kTransport).
  RdmaPair(const Context& context, std::shared_ptr<Link> link, std::shared_ptr<rdma::OpenPort> port,
           uint64_t number);
  ~RdmaPair() override;
  /// Once, after it has been made: completions are looked for from now on.
  void begin();
  const RdmaOffer& offer() const { return mine_; }
  /// Joins it to the other end. Throws Error(kTransport).
  void connect(const RdmaOffer& theirs);
  /// After both ends have connected: moves full packets both ways; then calls Listener::proven().
  void prove();
  /// Destroys the queue pair. Then all that was asked goes back to the dispatcher.
  void end(const std::string& why);
  const Link& link() const { return *link_; }
  uint64_t number() const { return number_; }

  // Answers of the owner, on the loop's thread.
  void take_key(uint32_t region, uint64_t secret, const RdmaKey& key);
  void take_no_key(uint32_t region, uint64_t secret, const Error& error);
  void take_key_gone(uint32_t region, uint64_t secret);

  /// This process was stopped for so long.
  void excuse(Duration lag);

  // Carrier.
  int suits(const RegionHandle& region, bool notice) const override;
  uint64_t window_bytes() const override;
  void ask(const Request& request, const std::function<bool()>& wanted) override;
  void abandon(const void* owner) override;
  void ping() override { link_->ping(); }
  Clock::time_point heard() const override;
  const std::string& peer_text() const override { return link_->peer_text(); }
  Way way() const override { return Way::kRdma; }

 private:
  using RegionId = std::pair<uint32_t, uint64_t>;  // index and secret
  struct Asked {
    Request request;
    RdmaMemory::Lease lease;  // null: its memory is not registered yet
    bool posted = false;
  };
  struct Stretch {
    const std::byte* data;
    uint64_t bytes;
    bool written;
  };
  static RegionId id_of(const Request& request);
  static Stretch stretch_of(const Request& request);

  void prepare(uint64_t id);
  void ask_for_key(const RegionId& region);
  bool go_on(Asked& asked);
  bool has_posted(const RegionId& region) const;
  void leave_key(const RegionId& region);
  std::optional<Error> objection(const Asked& asked, const RdmaKey& key) const;
  void post(Asked& asked, const RdmaKey& key);
  void refuse(uint64_t id, const RegionId& region, const Error& error);
  void answer_later(uint64_t id, const Error& error);
  void ready();
  std::string collect(std::vector<uint64_t>* done);
  void deliver(const std::vector<uint64_t>& done);
  RdmaOffer make_offer() const;
  verbs::Connection connection() const;
  bool has_posted(const void* owner) const;

  const Context context_;
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<rdma::OpenPort> port_;
  const uint64_t number_;
  const uint32_t psn_;
  RdmaOffer mine_;
  std::atomic<Clock::time_point> progressed_ = Clock::now();
  std::atomic<size_t> posted_ = 0;

  mutable std::mutex refused_mutex_;
  std::map<RegionId, Clock::time_point> refused_;  // until then

  mutable std::mutex mutex_;
  bool ended_ = false;
  int proofs_left_ = -1;
  RdmaOffer theirs_;
  std::map<uint64_t, Asked> requests_;
  std::map<RegionId, RdmaKey> keys_;
  std::set<RegionId> asking_;
  std::set<RegionId> leaving_;      // keys that posted requests use, and no others
  std::vector<std::byte> scratch_;  // for the proof: the peer's half, and this end's
  verbs::MemoryRegion scratch_region_;
  verbs::CompletionChannel channel_;
  verbs::CompletionQueue queue_;
  verbs::QueuePair pair_;
};

}  // namespace ringcoll::remote

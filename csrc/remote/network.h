// The links of an agent, and the thread that serves them: doors for those who come, links to those
// who are asked. Each frame goes to whom it concerns: the server, the dispatcher or the mailbox.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "connect/gate.h"
#include "net/event_loop.h"
#include "net/interfaces.h"
#include "remote/dispatcher.h"
#include "remote/link.h"
#include "remote/mailbox.h"
#include "remote/rdma.h"
#include "remote/server.h"

namespace ringcoll::remote {

/// Any thread.
class Network final : private Link::Listener {
 public:
  /// `config`: null: without RDMA. Throws Error(kTransport).
  Network(AgentFacts facts, std::vector<Interface> interfaces, Regions& regions,
          const Config* config);
  /// Says goodbye on all links, and ends all batches with kAborted.
  ~Network() override;

  Door admit(const std::string& name, const std::string& key, uint16_t port);
  AgentFacts facts();
  /// proof_of() the doors of another agent whose keys are known here.
  std::vector<uint64_t> proofs_for(const AgentFacts& agent);
  uint64_t dial(const std::vector<Address>& addresses, const std::string& name, Deadline deadline);
  uint64_t host() const { return own_.host; }

  Dispatcher& dispatcher() { return dispatcher_; }
  Mailbox& mailbox() { return mailbox_; }
  Server& server() { return server_; }
  /// No peer begins to read or write the region's memory any more, and those that do end. The
  /// region is refused already.
  void give_up(const Region& region);
  size_t count();

 private:
  struct OpenDoor {
    Door door;
    std::string key;
    std::vector<std::unique_ptr<Gate>> gates;
  };
  struct Joined {
    std::shared_ptr<Link> link;
    AgentFacts peer;  // as it has said hello; id 0: not yet
  };
  /// A link that this end makes, until the peer has said hello.
  struct Dialled {
    uint64_t agent = 0;  // the agent that it should reach; 0: any
    bool for_messages = false;
    bool is_probe = false;
    bool is_rail = false;          // beside the first link to the agent
    uint64_t lost_connection = 0;  // of a probe
    bool over = false;
    uint64_t connection = 0;
    std::optional<Error> error;
  };

  /// How an agent may be reached by one of its doors.
  struct Ways {
    std::vector<Address> all;                 // those in networks of this host first
    std::vector<std::vector<Address>> rails;  // by interface of this host
  };

  // Link::Listener, on the loop's thread.
  Place place_for(Link& link, const FrameHead& head) override;
  void take(Link& link, const FrameHead& head, std::string body) override;
  void made(Link& link) override;
  void ended(Link& link, LinkEnd end, const std::string& why) override;

  bool bind(OpenDoor& open, uint16_t port);
  void let_in(OpenDoor& open);
  std::shared_ptr<Link> begin(const std::vector<Address>& addresses, const std::string& name,
                              const std::string& key, Dialled dialled, Duration patience);
  void dial_for_payload(const AgentFacts& facts);
  Ways ways_to(const AgentFacts& facts, const Door& door) const;
  void take_hello(Link& link, const FrameHead& head, const std::string& body);
  void not_made(Link& link, LinkEnd end, const std::string& why);
  void probed(const Dialled& probe, LinkEnd end);
  void probe(const AgentFacts& peer, uint64_t connection);
  void tick();
  void excuse(Duration lag);

  const AgentFacts own_;  // without doors
  const std::vector<Interface> interfaces_;
  Dispatcher dispatcher_;
  Mailbox mailbox_;
  Server server_;
  std::mutex mutex_;
  std::condition_variable dialled_changed_;
  std::map<std::string, std::unique_ptr<OpenDoor>> doors_;
  std::map<Link*, Joined> links_;
  std::map<Link*, Dialled> dialled_;
  Clock::time_point last_tick_ = Clock::now();
  bool closing_ = false;
  std::unique_ptr<Rdma> rdma_;  // null: none
  EventLoop loop_;              // last: its thread uses all the others
};

}  // namespace ringcoll::remote

// Links that are being made: for each the lifeline if there is none, then its sockets, then the
// steps of its endpoint. An Opening never blocks. Messages advance theirs one at a time, as they
// are needed. A call advances several at once and waits for them (Openings).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/long_wait.h"
#include "connect/connector.h"
#include "life/farewell.h"
#include "life/lifelines.h"
#include "transport/transport.h"

namespace ringcoll {

class Mesh;

/// One link of a group. One thread at a time.
class Opening {
 public:
  /// What a link waits for, in order. A link without a transport is open when the lifeline is
  /// there.
  enum class State : uint8_t { kLifeline, kSockets, kEstablishing, kProving, kOpen };

  /// What the links of a group have in common.
  struct Of {
    Mesh& mesh;
    GroupNumber group;
    Health& health;
    Connector::Ends ends;
    uint32_t first_channel;  // of the sockets of a link
    /// Called on any thread when advance() may have more to do, except by the peer's endpoint.
    std::function<void()> notify;
  };
  /// The peer's ranks in the group and in the mesh.
  struct Peer {
    Rank rank = kNobody;
    Rank in_mesh = kNobody;
  };

  Opening(const Of& of, Peer peer, Transport* transport, Deadline deadline);
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  Rank peer() const { return peer_.rank; }
  Rank in_mesh() const { return peer_.in_mesh; }
  State state() const { return state_; }
  /// Advances as far as it can without blocking. Throws what the connector or the endpoint reports,
  /// or Error(kPeerLost) if the peer has left the group before its sockets came, and the same error
  /// from then on. Errors name the peer. Once the sockets are there, the caller watches the
  /// deadline.
  State advance();
  bool is_late() const { return deadline_.passed(); }
  /// The link, from State::kEstablishing on; the caller keeps it until the Opening has ended.
  std::unique_ptr<Endpoint> take_link() { return std::move(link_); }

 private:
  /// What the connector reports, on other threads and maybe after this object has ended.
  struct Inbox;

  void step();
  void look_for_gone();
  bool has_lifeline();
  void begin_sockets();
  bool has_sockets();
  void connect();

  const Of of_;
  const Peer peer_;
  Transport* const transport_;
  const Deadline deadline_;
  State state_ = State::kLifeline;
  Farewell farewell_;
  bool dials_ = false;  // the lifeline
  const std::shared_ptr<Inbox> inbox_;
  std::unique_ptr<Endpoint> link_;
  Endpoint* endpoint_ = nullptr;  // of link_, also after take_link()
  std::optional<Error> why_;      // it failed
};

/// The links that a call opens at the same time; both ends open them. One thread.
class Openings {
 public:
  /// For the group with this number and health. `doing` describes the caller for the log.
  Openings(Mesh& mesh, GroupNumber group, Health& health, Deadline deadline,
           std::function<std::string()> doing);

  /// Null transport: the lifeline alone.
  void add(Opening::Peer peer, Transport* transport);
  /// Blocks until all links have their sockets, and passes each to `connected` when it has. Other
  /// ranks are told that this rank waits for the first added peer that is missing, and the error at
  /// the deadline names it. Throws as Opening::advance(), or the group's error.
  void await(const std::function<void(Opening&)>& connected);
  std::span<const std::unique_ptr<Opening>> all() const { return openings_; }

 private:
  struct News;

  Opening* advance(const std::function<void(Opening&)>& connected);
  void tell_of(const Opening& missing);

  Mesh& mesh_;
  Health& health_;
  const Deadline deadline_;
  const std::function<std::string()> doing_;
  const std::shared_ptr<News> news_;
  const Opening::Of of_;
  LongWait long_wait_;
  std::vector<std::unique_ptr<Opening>> openings_;  // in the order of add()
};

}  // namespace ringcoll

// Opens links to several peers at the same time: a lifeline for each if there is none, then the
// sockets of the link. No peer waits for another.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/long_wait.h"
#include "connect/dials.h"
#include "life/farewell.h"
#include "life/lifelines.h"

namespace ringcoll {

class Mesh;

/// One thread. Ranks are group ranks, unless a comment says mesh ranks.
class Opening {
 public:
  /// For the group with this number and health. `doing` describes the caller for the log.
  Opening(Mesh& mesh, GroupNumber group, Health& health, Deadline deadline,
          std::function<std::string()> doing);
  /// Gives up what is not made, but waits a moment for lifelines that peers may have already.
  ~Opening();
  /// Called after an error. Stops dialling, but waits up to `limit` for lifelines that peers may
  /// have already.
  void settle(Duration limit);
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  /// Adds a peer, before next(). `in_mesh`: its mesh rank. Its lifeline comes first, so that its
  /// death is noticed while its sockets are made.
  void add(Rank peer, Rank in_mesh, size_t sockets);

  struct Opened {
    Rank peer = kNobody;
    std::vector<Fd> sockets;
  };
  /// The next peer that has everything; none if all peers were returned. Blocks until the deadline.
  /// Other ranks are told that this rank waits for the first added peer that is missing, and the
  /// error at the deadline names it. Throws as Connector::dial(), or the group's error, or
  /// Error(kPeerLost) if a missing peer has left the group.
  std::optional<Opened> next();

 private:
  struct Peer {
    enum class State : uint8_t { kOthersLine, kLine, kSockets, kOpen };
    Rank rank = kNobody;
    Rank in_mesh = kNobody;
    State state = State::kOthersLine;
    std::vector<Fd> sockets;
    size_t missing = 0;  // sockets still to come
    Farewell farewell;
  };

  void advance();
  bool look_for_gone();
  void begin_line(Peer& peer);
  void begin_sockets(Peer& peer);
  void take(Dials::Made made);
  void end(Peer& peer);
  Error named(const Error& error) const;

  Mesh& mesh_;
  Health& health_;
  const Deadline deadline_;
  Dials dials_;
  const std::function<std::string()> doing_;
  LongWait long_wait_;
  std::vector<Peer> peers_;  // in the order of add()
  std::map<Rank, size_t> by_mesh_;
  size_t opened_ = 0;        // peers that have everything
  size_t others_lines_ = 0;  // peers not known to have or get a lifeline here
  std::deque<size_t> open_;  // those that next() has not returned
};

}  // namespace ringcoll

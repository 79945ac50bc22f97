// Links that are opened at the same time: to each peer a lifeline, if there is none, and then the
// sockets that its link takes. Peers do not wait for one another.
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
#include "bootstrap/dials.h"
#include "mesh/farewell.h"
#include "mesh/lifelines.h"

namespace ringcoll {

class Mesh;

/// One thread. Ranks are the group's, where it is not said that they are the mesh's.
class Opening {
 public:
  /// For the group with this number and health.
  /// `doing`: for the log, what waits for it.
  Opening(Mesh& mesh, GroupNumber group, Health& health, Deadline deadline,
          std::function<std::string()> doing);
  /// Gives up what is not there, but for lifelines that their peers may have already.
  ~Opening();
  /// After an error: has nothing made any more, but waits so long at most for lifelines that their
  /// peers may have already.
  void settle(Duration limit);
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  /// The lifeline comes first, for a peer that dies while the rest is made has to be noticed, too.
  void add(Rank peer, Rank in_mesh, size_t sockets);

  struct Opened {
    Rank peer = kNobody;
    std::vector<Fd> sockets;
  };
  /// The next peer of which all is there; none: there is no other. Blocks to the deadline. Others
  /// are told that this rank waits for the first added of those that have not come, who is also
  /// named at the deadline. Throws as Connector::dial(), or what the group has failed with, or
  /// Error(kPeerLost) if one of them has left the group.
  std::optional<Opened> next();

 private:
  struct Peer {
    enum class State : uint8_t { kOthersLine, kLine, kSockets, kOpen };
    Rank rank = kNobody;
    Rank in_mesh = kNobody;
    State state = State::kOthersLine;
    std::vector<Fd> sockets;
    size_t missing = 0;  // of them
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
  std::vector<Peer> peers_;  // as they were added
  std::map<Rank, size_t> by_mesh_;
  size_t opened_ = 0;        // of them
  size_t others_lines_ = 0;  // of them, whose lifelines other threads make
  std::deque<size_t> open_;  // that next() has not given
};

}  // namespace ringcoll

// One end of a lifeline (mesh/lifelines.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/fd.h"
#include "bootstrap/connector.h"

namespace ringcoll::lifeline {

struct Line {
  Fd fd;
  std::string in;           // received, not yet a whole message
  bool heard = false;       // anything at all
  bool goodbye = false;     // the peer has said so
  bool gone = false;        // or its line has closed
  bool mute = false;        // half a message was sent: nothing can follow it
  bool is_watched = false;  // for its silence, as something was sent on it
  bool is_silent = false;   // as a first look has found
  uint64_t pong_token = 0;  // of the last answer
  Rank pong_waiting_for = kNobody;
  std::set<GroupNumber> left;  // that the peer was in
};

/// Never blocks. What a full socket does not take is lost: its peer has not read for a long time,
/// and nobody's progress may depend on one that does not.
void send_on(Line& line, const std::string& message);

}  // namespace ringcoll::lifeline

// One end of a lifeline (life/lifelines.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/types.h"
#include "connect/connector.h"

namespace ringcoll::lifeline {

struct Line {
  Fd fd;
  std::string in;           // received, not yet a whole message
  bool heard = false;       // a message has arrived
  bool goodbye = false;     // the peer has said goodbye
  bool gone = false;        // goodbye, or the line has closed
  bool mute = false;        // half a message was sent: nothing can follow
  bool is_watched = false;  // a check for silence is scheduled
  bool is_silent = false;   // the last check found too much silence
  uint64_t pong_token = 0;  // of the last pong
  Rank pong_waiting_for = kNobody;
  std::set<GroupNumber> left;  // groups that the peer has left
};

/// Never blocks. A full socket drops the message: its peer has not read for a long time, and
/// nobody's progress may depend on such a peer.
void send_on(Line& line, const std::string& message);

/// True if the peer reads: little of what was sent is unacknowledged. Optional messages are sent
/// only then, so that they never fill the line.
bool is_read(const Line& line);

/// Explains why `who` counts as lost. `error`: the errno of recv() on its lifeline; 0 at end of
/// stream.
std::string why_lost(const std::string& who, int error);

/// How long others may take to report the cause of such an error.
Duration grace_of(const Error& error);

}  // namespace ringcoll::lifeline

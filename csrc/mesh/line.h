// One end of a lifeline (mesh/lifelines.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/types.h"
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

/// Whether its peer reads: little is left of what was sent. What is said for good measure is not
/// said otherwise, lest it fill the line.
bool is_read(const Line& line);

/// Why `who` is taken to be lost. `error`: of a recv() on its lifeline, 0 at the end of the stream.
std::string why_lost(const std::string& who, int error);

/// How long others may take to report the cause of such an error.
Duration grace_of(const Error& error);

}  // namespace ringcoll::lifeline

// The wire format of messages with tags. Each message on a channel has an envelope of 24 bytes, the
// Head, and a payload where Word says so. Both ends number the announcements of one direction from
// 1, in the order of the channel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "transport/transport.h"

namespace ringcoll {

enum class Word : uint8_t {
  kNone = 0,
  kShort,      // eager: a message and its payload
  kAnnounce,   // rendezvous: the payload still lies at address `where` of the sender
  kSeal,       // sent before the first announcement, and after each change. Announced memory is
               // unchanged while the word at address `where` of the sender is `bytes`
  kWithdrawn,  // announcement `where` is void, unless its message has been received
  kWant,       // the receiver asks for the payload of announcement `where`
  kHelp,       // the receiver reads `where` from its beginning and wants stretches from its end
  kStretch,    // answers kWant: payload of announcement `where`, from offset `bytes` on
  kHelping,    // answers kHelp, with the same fields; the last stretch comes first
  kTaken,      // the receiver has copied announcement `where`
  kReturned,   // credit for `bytes` of short messages that the receiver no longer keeps
};

/// Sent as it lies in memory: both ends are of one build, widths are fixed, and nothing is padded.
struct Head {
  Word word = Word::kNone;
  uint8_t zero[3] = {};
  int32_t tag = 0;     // of kShort and kAnnounce
  uint64_t bytes = 0;  // length of the message, unless Word says otherwise
  uint64_t where = 0;
};
static_assert(sizeof(Head) == sizeof(Envelope) && std::has_unique_object_representations_v<Head>);

}  // namespace ringcoll

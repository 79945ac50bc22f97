// What travels on a channel for messages with tags: an envelope of 24 bytes, and a payload where it
// says so. The channel's order counts: announcements in one direction are numbered by both ends as
// they come, from 1.
#pragma once

#include <cstdint>
#include <type_traits>

#include "transport/transport.h"

namespace ringcoll {

enum class Word : uint8_t {
  kNone = 0,
  kShort,      // a message and its bytes
  kAnnounce,   // a message whose bytes are still with the sender, at `where` in its memory
  kSeal,       // before the first announcement, and whenever it has changed: as long as the word at
               // `where` in the sender's memory is `bytes`, what it has announced is what it was
  kWithdrawn,  // announcement `where` is none any more, unless it has been received
  kWant,       // send me the bytes of announcement `where`
  kHelp,       // I copy announcement `where` from its beginning: send me what you can, from its end
  kStretch,    // bytes of announcement `where`, from `bytes` on, which was asked for
  kHelping,    // the same of one that the receiver copies, from its end
  kTaken,      // I have copied announcement `where`
  kReturned,   // `bytes` of short messages are not kept any more
};

/// Equal builds, fixed widths, no padding.
struct Head {
  Word word = Word::kNone;
  uint8_t zero[3] = {};
  int32_t tag = 0;     // of kShort and kAnnounce
  uint64_t bytes = 0;  // of the message, where nothing else is said
  uint64_t where = 0;
};
static_assert(sizeof(Head) == sizeof(Envelope) && std::has_unique_object_representations_v<Head>);

}  // namespace ringcoll

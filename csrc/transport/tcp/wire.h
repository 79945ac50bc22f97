// The header that precedes every stretch of a message on a TCP stream.
#pragma once

#include <bit>
#include <cstdint>

#include "transport/transport.h"

namespace ringcoll::tcp {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint32_t kMagic = 0x6c6c6372;  // "rcll"
inline constexpr uint16_t kVersion = 2;

/// The header of a stretch. The first one of every message on stream 0 announces the message, and
/// may carry no payload. If the message has one stream, its only stretch carries all payload.
struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t streams = 1;  // stretches of this message may be on streams 0 … streams - 1
  uint64_t number = 0;   // of the message on this link, from 1
  uint64_t bytes = 0;    // of the message
  uint64_t offset = 0;   // of the stretch in it
  uint64_t here = 0;     // bytes of the stretch, which follow
  Envelope envelope;
};
static_assert(sizeof(Header) == 64);

}  // namespace ringcoll::tcp

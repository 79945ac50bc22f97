// What travels before every payload on a TCP stream.
#pragma once

#include <bit>
#include <cstdint>

#include "transport/transport.h"

namespace ringcoll::tcp {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint32_t kMagic = 0x6c6c6372;  // "rcll"
inline constexpr uint32_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint64_t bytes = 0;
  Signature signature;
};
static_assert(sizeof(Header) == 40);

}  // namespace ringcoll::tcp

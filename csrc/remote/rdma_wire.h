// What two agents tell each other over a link to join by RDMA.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/verbs/wire.h"

namespace ringcoll::remote {

/// One end of a queue pair. Sent as it is, little-endian.
struct RdmaOffer {
  rdma::Address address;
  uint32_t qp_num = 0;
  uint32_t psn = 0;
  uint32_t reads_in_flight = 0;  // that it may have outstanding, and serves
  uint32_t scratch_rkey = 0;     // memory for the proof of the path, kScratchBytes of it
  uint32_t reserved = 0;
  uint64_t scratch = 0;
};
static_assert(sizeof(RdmaOffer) == 104);

/// One byte more than the longest packet, so that the proof has a full one.
inline constexpr uint32_t kScratchBytes = 4096 + 1;

std::string encode(const RdmaOffer& offer);
/// Throws Error(kTransport).
RdmaOffer decode_offer(std::string_view bytes);

}  // namespace ringcoll::remote

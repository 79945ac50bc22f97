// What agents say to one another over a connection, after both have proven that they know the key
// of a door. A frame is a head and, for some kinds, `bytes` bytes of body. Either end may ask.
#pragma once

#include <cstdint>

namespace ringcoll::remote {

enum class FrameKind : uint16_t {
  kHello = 1,  // the first of each end; body: two texts, encode(AgentFacts) and Rdma::ports()
  kRead,       // asks for bytes of a region; answered by kData or kFailed
  kData,       // body: the bytes
  kWrite,      // body: bytes for a region; answered by kDone or kFailed
  kNotice,     // a notice for a region, with its value as `offset`; answered by kDone or kFailed
  kDone,
  kFailed,   // `code`: that of the Error; body: its text
  kMessage,  // body: for the program of the other end
  kPing,     // answered by kPong
  kPong,
  kGoodbye,  // the last: the end that says it leaves on purpose
  // A queue pair beside the link (remote/rdma.h). `id`: which, counted by the end that made the
  // link.
  kRdmaOffer,   // from that end; body: encode(RdmaOffer)
  kRdmaAnswer,  // body: encode(RdmaOffer) of the other end, whose queue pair can receive by now
  kRdmaReady,   // the path carries RDMA
  kRdmaEnd,     // there is no queue pair (any more); body: why
  // Keys of regions, which are named by `region` and `secret`.
  kKeyAsk,   // answered by kKey or kNoKey
  kKey,      // `id`: the key, `offset`: the address, `bytes`: of the region, `code`: 1 if writable
  kNoKey,    // `code`: that of the Error; body: its text. kTransport: the region is not registered
  kKeyGone,  // the key is about to become invalid; answered by kKeyLeft
  kKeyLeft,  // this end does not use the key any more
};

/// Sent as it is, little-endian.
struct FrameHead {
  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kPing;
  uint16_t code = 0;
  uint64_t id = 0;  // of a request, and of its answer; kHello: 1 if the link is for messages
  uint64_t secret = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t region = 0;
  uint32_t reserved = 0;

  static constexpr uint32_t kMagic = 0x31524352;  // "RCR1": the last character is the version
};
static_assert(sizeof(FrameHead) == 48);

constexpr bool has_body(FrameKind kind) {
  return kind == FrameKind::kHello || kind == FrameKind::kData || kind == FrameKind::kWrite ||
         kind == FrameKind::kFailed || kind == FrameKind::kMessage ||
         kind == FrameKind::kRdmaOffer || kind == FrameKind::kRdmaAnswer ||
         kind == FrameKind::kRdmaEnd || kind == FrameKind::kNoKey;
}

inline constexpr uint64_t kLongestMessage = uint64_t{64} << 20;
inline constexpr uint64_t kLongestText = 4096;  // bodies without payload
/// The most bytes of one kRead or kWrite. Longer copies are cut, so that several links and holders
/// share them, and a message waits for no more than this.
inline constexpr uint64_t kChunkBytes = 1 << 20;

}  // namespace ringcoll::remote

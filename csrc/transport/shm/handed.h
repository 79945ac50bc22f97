// Buffers for messages that are copied when they are sent (docs/design.md, "Copies"). They go to
// and fro between two ranks: a message hands its buffer over, and the receiver sends its next
// message in the buffer that came last. So a rank writes to lines that its core has just read. They
// are still in that core's caches. With most processors the core also owns them, since a line that
// one core has modified migrates to the core that reads it (Cox and Fowler, "Adaptive cache
// coherency for detecting migratory shared data", ISCA 1993). Memory that a rank writes again and
// again would be fetched from the peer's core each time.
//
// An end with more buffers than it needs gives those that it has read back to the peer. Otherwise a
// peer that sends and does not receive would soon have none. At first each end has the buffers in
// its own memory, so it writes to the peer's memory only after the peer has sent from there. A peer
// that never made the link, or has left it, may use its unit for another link by then (reserve.h).
// So this end never writes there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace ringcoll::shm {

class HandedBuffers {
 public:
  /// An end gives buffers back once it has kSpare more free buffers than at first. Until then it
  /// keeps the peer's buffers and sends from them.
  static constexpr uint32_t kSpare = 2;
  /// The buffers that each end has at first. Even if the other end keeps kSpare of them, one is
  /// left for each message that a link must take.
  static constexpr uint32_t kOfEach = kLeastCredits + kSpare;
  static constexpr uint32_t kCount = 2 * kOfEach;
  /// A set of buffers, with one bit for each.
  using Set = uint64_t;

  /// `mine` and `theirs`: kOfEach buffers, one after another, in the memory of each end, for this
  /// pair alone. If both are empty, there are no buffers. `leads`: true at one end, false at the
  /// other.
  HandedBuffers(std::span<std::byte> mine, std::span<std::byte> theirs, bool leads);

  /// The bytes of one buffer; 0 if there are no buffers.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return free_count_ == 0; }
  /// Takes the buffer that this end has read last; it is the peer's from now on. Precondition: not
  /// empty().
  uint32_t hand_over();
  std::byte* at(uint32_t number) const {
    return memory_[number / kOfEach] + number % kOfEach * bytes_;
  }
  /// The buffer that came with a message of the peer. Null: the peer does not have that buffer.
  const std::byte* receive(uint32_t number);
  /// Reports that the message in the buffer has been read. True: the buffer is this end's now.
  /// False: it is the peer's again, and the caller tells the peer (returned()). Precondition:
  /// take_back() was called before. Otherwise this end would not count all buffers that it has, and
  /// would keep too many.
  bool keep(uint32_t number);
  /// One bit for each buffer, flipped each time that this end gives the buffer back.
  Set returned() const { return returned_; }
  Set taken_back() const { return taken_back_; }
  /// Takes the buffers that the peer has given back, according to the peer's returned().
  void take_back(Set returned);

 private:
  enum class State : uint8_t { kFree, kPeers, kReceived };
  void add(uint32_t number);

  std::array<std::byte*, 2> memory_;  // of the end that leads, and of the other
  uint64_t bytes_;
  std::array<State, kCount> states_{};
  std::array<uint8_t, kCount> free_{};  // the last one is taken first
  uint32_t free_count_ = 0;
  Set returned_ = 0, taken_back_ = 0;
};

}  // namespace ringcoll::shm

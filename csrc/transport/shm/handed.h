// Buffers for messages that are copied when they are sent (docs/design.md, "Copies"). They go to
// and fro between two ranks: a message hands its buffer over, and the receiver sends its next
// message in the buffer that came last. So what is written next is what this core has just read:
// its lines are still here, and with most processors they are its own, since what a core has
// modified migrates to the one that reads it (Cox and Fowler, "Adaptive cache coherency for
// detecting migratory shared data", ISCA 1993). Memory that a rank writes again and again is
// fetched from the peer's core each time instead.
//
// An end that has more buffers than it needs gives those that it has read back, or the peer, if it
// sends and does not receive, would soon have none. At first each end has the buffers in its own
// memory. So an end writes to memory of the peer only after the peer has sent in it: a link that
// the peer never made, or has left, leaves alone what that unit of its memory is used for by then
// (reserve.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace ringcoll::shm {

class HandedBuffers {
 public:
  /// With so many more free buffers than it had at first, an end gives others back. Until then the
  /// peer's buffers are its own to send from.
  static constexpr uint32_t kSpare = 2;
  /// The buffers that each end has at first. However many it keeps of the peer's, the peer has one
  /// for each message that a link must take.
  static constexpr uint32_t kOfEach = kLeastCredits + kSpare;
  static constexpr uint32_t kCount = 2 * kOfEach;
  /// A set of buffers, a bit for each.
  using Set = uint64_t;

  /// `mine`, `theirs`: of the pair alone, kOfEach buffers one after another in the memory of each
  /// end; empty: there are none. `leads`: true at one end, false at the other.
  HandedBuffers(std::span<std::byte> mine, std::span<std::byte> theirs, bool leads);

  /// The bytes of one buffer; 0: there are none.
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return free_count_ == 0; }
  /// Takes the buffer that this end has read last, which is the peer's from now on. Precondition:
  /// not empty().
  uint32_t hand_over();
  std::byte* at(uint32_t number) const {
    return memory_[number / kOfEach] + number % kOfEach * bytes_;
  }
  /// The buffer that came with a message of the peer; null: that cannot be.
  const std::byte* receive(uint32_t number);
  /// What was received in the buffer has been read. True: the buffer is this end's; false: it is
  /// the peer's again, which has to be told (returned()). Call take_back() before: an end that does
  /// not know of all buffers which are its own would keep too many.
  bool keep(uint32_t number);
  /// The buffers that this end has ever given back, each bit changed at each time.
  Set returned() const { return returned_; }
  Set taken_back() const { return taken_back_; }
  /// Takes the buffers back that the peer has given back, by its returned().
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

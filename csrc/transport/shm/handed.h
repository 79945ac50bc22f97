// Buffers that go to and fro between two ranks (docs/design.md, "Copies"). Whoever sends a message
// in one of them hands it over, and may send the next one in those that came with the peer's. So
// what is written next is what this core has just read: its lines are still here, and with most
// processors they are its own, since what a core has modified migrates to the one that reads it
// (Cox and Fowler, "Adaptive cache coherency for detecting migratory shared data", ISCA 1993).
// Memory that a rank writes again and again is fetched from the peer's core each time instead.
//
// Nobody gives a buffer back but with a message: who sends and does not receive soon has none, and
// sends from elsewhere. At first each end has those in its own memory. So an end writes to memory
// of the peer's only after the peer has sent in it: a link that the peer never made, or has left,
// leaves alone what that unit of its memory is used for by then (reserve.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ringcoll::shm {

class HandedBuffers {
 public:
  /// That each end has at first: as many as there are messages under way in a pipeline, twice.
  static constexpr uint32_t kOfEach = 4;
  static constexpr uint32_t kCount = 2 * kOfEach;

  /// `mine`, `theirs`: of the pair alone, kOfEach buffers one after another in the memory of each
  /// end; empty: there are none. `leads`: true at one end, false at the other.
  HandedBuffers(std::span<std::byte> mine, std::span<std::byte> theirs, bool leads);

  /// Of one.
  uint64_t bytes() const { return bytes_; }
  /// The one of this end's that was the peer's last, if the message fits; null: there is none. It
  /// is then for one message, and belongs to the peer once that is sent.
  std::byte* take(uint64_t bytes);
  /// Whether it is memory of theirs.
  bool hold(const void* data) const { return number_of(data) < kCount; }
  /// Hands the one that begins there over. kCount: none does that was taken.
  uint32_t hand_over(const void* data);
  /// The one that came with a message of the peer; null: that cannot be.
  const std::byte* receive(uint32_t number);
  /// What was received in it has been read: it is this end's.
  void keep(uint32_t number);

 private:
  enum class State : uint8_t { kFree, kTaken, kPeers, kReceived };
  std::byte* at(uint32_t number) const {
    return memory_[number / kOfEach] + number % kOfEach * bytes_;
  }
  uint32_t number_of(const void* data) const;

  std::array<std::byte*, 2> memory_;  // of the end that leads, and of the other
  uint64_t bytes_;
  std::array<State, kCount> states_{};
  std::array<uint8_t, kCount> free_{};  // the last one is taken first
  uint32_t free_count_ = 0;
};

}  // namespace ringcoll::shm

#include "transport/shm/handed.h"

#include <bit>

namespace ringcoll::shm {

HandedBuffers::HandedBuffers(std::span<std::byte> mine, std::span<std::byte> theirs, bool leads)
    : memory_{leads ? mine.data() : theirs.data(), leads ? theirs.data() : mine.data()},
      bytes_(mine.size() / kOfEach) {
  states_.fill(State::kPeers);
  if (bytes_ == 0) return;
  for (uint32_t i = 0; i < kOfEach; i++) add(leads ? i : kOfEach + i);
}

void HandedBuffers::add(uint32_t number) {
  states_[number] = State::kFree;
  free_[free_count_++] = static_cast<uint8_t>(number);
}

uint32_t HandedBuffers::hand_over() {
  uint32_t number = free_[--free_count_];
  states_[number] = State::kPeers;
  return number;
}

const std::byte* HandedBuffers::receive(uint32_t number) {
  if (number >= kCount || bytes_ == 0 || states_[number] != State::kPeers) return nullptr;
  states_[number] = State::kReceived;
  return at(number);
}

bool HandedBuffers::keep(uint32_t number) {
  if (free_count_ < kOfEach + kSpare) {
    add(number);
    return true;
  }
  states_[number] = State::kPeers;
  returned_ ^= Set{1} << number;
  return false;
}

// Only a buffer that the peer has can be given back. A peer that says otherwise is corrupt, and is
// ignored.
void HandedBuffers::take_back(Set returned) {
  for (Set fresh = returned ^ taken_back_; fresh != 0; fresh &= fresh - 1) {
    auto number = static_cast<uint32_t>(std::countr_zero(fresh));
    if (number < kCount && states_[number] == State::kPeers) add(number);
  }
  taken_back_ = returned;
}

}  // namespace ringcoll::shm

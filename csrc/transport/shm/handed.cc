#include "transport/shm/handed.h"

namespace ringcoll::shm {

HandedBuffers::HandedBuffers(std::span<std::byte> mine, std::span<std::byte> theirs, bool leads)
    : memory_{leads ? mine.data() : theirs.data(), leads ? theirs.data() : mine.data()},
      bytes_(mine.size() / kOfEach) {
  states_.fill(State::kPeers);
  if (bytes_ == 0) return;
  for (uint32_t i = 0; i < kOfEach; i++) keep(leads ? i : kOfEach + i);
}

// kCount: of none.
uint32_t HandedBuffers::number_of(const void* data) const {
  auto address = reinterpret_cast<uintptr_t>(data);
  for (uint32_t half = 0; half < 2; half++) {
    uint64_t offset = address - reinterpret_cast<uintptr_t>(memory_[half]);
    if (offset < kOfEach * bytes_) return half * kOfEach + static_cast<uint32_t>(offset / bytes_);
  }
  return kCount;
}

std::byte* HandedBuffers::take(uint64_t bytes) {
  if (bytes > bytes_ || free_count_ == 0) return nullptr;
  uint32_t number = free_[--free_count_];
  states_[number] = State::kTaken;
  return at(number);
}

uint32_t HandedBuffers::hand_over(const void* data) {
  uint32_t number = number_of(data);
  if (number == kCount || at(number) != data || states_[number] != State::kTaken) return kCount;
  states_[number] = State::kPeers;
  return number;
}

const std::byte* HandedBuffers::receive(uint32_t number) {
  if (number >= kCount || bytes_ == 0 || states_[number] != State::kPeers) return nullptr;
  states_[number] = State::kReceived;
  return at(number);
}

void HandedBuffers::keep(uint32_t number) {
  states_[number] = State::kFree;
  free_[free_count_++] = static_cast<uint8_t>(number);
}

}  // namespace ringcoll::shm

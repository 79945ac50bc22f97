// Couriers of several ranks in one thread, which are advanced in random order over channels that
// put off what they can.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "p2p/channels_testing.h"
#include "p2p/courier.h"

namespace ringcoll::testing {

// So small that stories meet every limit.
inline constexpr Courier::Limits kSmall{.short_bytes = 100,
                                        .small_bytes = 80,
                                        .kept_bytes = 1000,
                                        .stretch_bytes = 150,
                                        .lent_bytes = 400,
                                        .staged_bytes = 130,
                                        .read_bytes = 170,
                                        .most_read_bytes = 400};

inline const Behaviour kCalm = behaviours()[4];
/// A transfer with memory of its own.
struct Letter : Transfer {
  Transfer& transfer = *this;
  std::vector<std::byte> memory;
  Rank rank = 0;       // whose it is
  uint64_t order = 0;  // among those of this rank
  bool over = false;
};

/// Content that says which message it is.
inline void fill(std::vector<std::byte>& memory, Rank from, uint64_t order) {
  for (size_t i = 0; i < memory.size(); i++)
    memory[i] = static_cast<std::byte>(from * 131 + order * 17 + i * 7);
}

class Ranks {
 public:
  Ranks(Rank size, const Behaviour& behaviour, uint64_t seed, Courier::Limits limits = kSmall)
      // Of one seed they would draw the same, and whose turn it is would say how it goes.
      : world(size, behaviour, ~seed), random(seed) {
    for (Rank rank = 0; rank < size; rank++)
      couriers.push_back(std::make_unique<Courier>(
          world.channels(rank), limits, [](Transfer* transfer) { owner(transfer).over = true; }));
  }

  Letter& send(Rank from, Rank to, int32_t tag, uint64_t bytes) {
    Letter& letter = make(from, false, to, tag, bytes);
    fill(letter.memory, from, letter.order);
    couriers[from]->begin(&letter.transfer);
    return letter;
  }
  Letter& receive(Rank at, Rank from, int32_t tag, uint64_t room) {
    Letter& letter = make(at, true, from, tag, room);
    couriers[at]->begin(&letter.transfer);
    return letter;
  }
  bool advance_one() { return couriers[random() % couriers.size()]->advance_thoroughly(); }
  /// Until nothing has moved for long.
  void settle() {
    for (int quiet = 0; quiet < 400; quiet++)
      if (advance_one()) quiet = 0;
  }

  FakeWorld world;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Courier>> couriers;
  std::deque<Letter> letters;

 private:
  static Letter& owner(Transfer* transfer) { return *static_cast<Letter*>(transfer); }
  Letter& make(Rank rank, bool receives, Rank peer, int32_t tag, uint64_t bytes) {
    Letter& letter = letters.emplace_back();
    letter.rank = rank;
    letter.order = letters.size();
    letter.memory.resize(bytes);
    letter.transfer.receives = receives;
    letter.transfer.peer = peer;
    letter.transfer.tag = tag;
    letter.transfer.data = letter.memory.data();
    letter.transfer.bytes = bytes;
    return letter;
  }
};

}  // namespace ringcoll::testing

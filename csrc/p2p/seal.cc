#include "p2p/seal.h"

#include "base/nonce.h"
#include "base/order.h"

namespace ringcoll {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

/// The word of a seal. The list of words only grows, to 16 bytes for each seal that ever existed at
/// the same time. A later seal, with another value, uses the word of a broken one. The list has no
/// lock, since a thread could hold it when the process forks.
struct Word {
  std::atomic<uint64_t> value;
  Word* next;
};
std::atomic<Word*> all{nullptr};

std::atomic<uint64_t>* make(uint64_t value) {
  for (Word* word = all.load(); word; word = word->next) {
    uint64_t broken = 0;
    if (word->value.compare_exchange_strong(broken, value)) return &word->value;
  }
  auto* word = new Word{.value = value, .next = all.load()};
  while (!all.compare_exchange_weak(word->next, word)) {
  }
  return &word->value;
}

}  // namespace

Seal::Seal() : value_(random_nonce() | 1), word_(make(value_)) {}

Seal::~Seal() { break_it(); }

// The full fences order the change of the word before later writes to memory that was lent. No
// memory order of the word itself does that. Peers read the memory first, and then the word
// (PeerMemory::read).

// Leaves the word of a broken seal alone: it may be another seal's by now.
void Seal::renew() {
  uint64_t before = std::exchange(value_, random_nonce() | 1);
  word_->compare_exchange_strong(before, value_);
  full_fence();
}

// Changes the word only once: later it may be another seal's.
void Seal::break_it() {
  uint64_t whole = value_;
  word_->compare_exchange_strong(whole, 0);
  full_fence();
}

}  // namespace ringcoll

#include "p2p/seal.h"

#include "base/nonce.h"
#include "base/order.h"

namespace ringcoll {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

/// As many as there have been seals at a time, until the process ends: 16 bytes each. One whose
/// seal is broken is another seal's, whose value differs. Without a lock, which a thread could hold
/// when the process forks.
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

// The fences: what is written afterwards to memory that was lent comes after the word, which no
// order of the word itself says. Peers read the memory first, and then the word
// (PeerMemory::read).

// A seal that is broken stays so: its word may be another's.
void Seal::renew() {
  uint64_t before = std::exchange(value_, random_nonce() | 1);
  word_->compare_exchange_strong(before, value_);
  full_fence();
}

// Once: then the word may be another's.
void Seal::break_it() {
  uint64_t whole = value_;
  word_->compare_exchange_strong(whole, 0);
  full_fence();
}

}  // namespace ringcoll

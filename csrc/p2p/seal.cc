#include "p2p/seal.h"

#include "transport/nonce.h"

namespace ringcoll {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

/// One for each communicator that has sent messages, until the process ends: 16 bytes. Without a
/// lock, which a thread could hold when the process forks.
struct Word {
  std::atomic<uint64_t> value;
  Word* next;
};
std::atomic<Word*> all{nullptr};

std::atomic<uint64_t>* make(uint64_t value) {
  auto* word = new Word{.value = value, .next = all.load()};
  while (!all.compare_exchange_weak(word->next, word)) {
  }
  return &word->value;
}

}  // namespace

Seal::Seal() : value_(random_nonce() | 1), word_(make(value_)) {}

Seal::~Seal() { break_it(); }

void Seal::break_it() { word_->store(0); }

}  // namespace ringcoll

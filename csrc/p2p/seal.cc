#include "p2p/seal.h"

#include <cstddef>
#include <deque>
#include <mutex>
#include <new>
#include <vector>

#include "transport/nonce.h"

namespace ringcoll {
namespace {

using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint64_t));

struct Words {
  std::mutex mutex;
  std::deque<Word> all;  // never moved
  std::vector<Word*> free;
};

// Never destroyed: peers may still look.
Words& words() {
  alignas(Words) static std::byte memory[sizeof(Words)];
  static Words* made = new (memory) Words;
  return *made;
}

Word* take() {
  std::lock_guard lock(words().mutex);
  if (words().free.empty()) return &words().all.emplace_back(0);
  Word* word = words().free.back();
  words().free.pop_back();
  return word;
}

}  // namespace

Seal::Seal() : value_(random_nonce() | 1), word_(take()) { word_->store(value_); }

Seal::~Seal() {
  break_it();
  std::lock_guard lock(words().mutex);
  words().free.push_back(word_);
}

void Seal::break_it() { word_->store(0); }

}  // namespace ringcoll

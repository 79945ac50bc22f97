// How ranks that disagree about a call learn of it, whatever messages the call has. A message that
// belongs to another call than the receiver's tells it at once. But ranks may disagree so that
// each waits for a message that nobody sends, or that all send and none receives. So each rank
// remembers its last calls and, when it has begun none for a moment, because it waits or is done,
// tells them to its peers, which compare them with their own (docs/design.md, "Ranks that
// disagree").
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/order.h"
#include "coll/call.h"
#include "coll/mismatch.h"
#include "life/lifelines.h"

namespace ringcoll {

/// The last calls of a rank. Written by the thread that executes, in a few stores for each call;
/// read by any.
class CallLog {
 public:
  /// A rank is ahead of one that waits by the credits of a link, of each link on the way to it.
  static constexpr uint64_t kKept = 128;

  /// The next call has begun. Precondition: its sequence is one more than latest(), modulo 2^32.
  void add(const Signature& signature);
  /// The number of calls so far; also that of the last one.
  uint64_t latest() const { return observe(latest_); }
  /// The n-th call, if it is still known.
  std::optional<Signature> at(uint64_t n) const;

 private:
  /// Of a signature, but for its sequence, which is the number of the call.
  struct Entry {
    std::atomic<int64_t> count{0};
    std::atomic<uint64_t> kind{0};  // from `root` on
    std::atomic<uint32_t> details{0};
  };

  std::array<Entry, kKept> entries_;
  std::atomic<uint64_t> latest_{0};
};

/// Of a communicator. Any thread, but for what is said of others.
class CallWatch final : public HealthListener {
 public:
  /// `health` outlives it.
  CallWatch(Health& health, Rank rank);
  /// Tells the peers its last calls if they have not heard of them.
  ~CallWatch() override;
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// A call begins; before its first message. By the thread that executes.
  void begin(const Signature& signature, const Call& call) {
    if (signature.details != 0) [[unlikely]]
      note(signature.details, call);
    log_.add(signature);
    if (rests_.load(std::memory_order_relaxed)) [[unlikely]]
      if (rests_.exchange(false)) health_.tick();
  }
  /// Messages of the peer do not fit this rank's calls: has it compare them.
  void tell(Rank peer) { health_.tell_calls(peer, said_to(peer)); }
  /// Compares a call of a peer with this rank's of the same number; none if they are alike, or that
  /// one is not known.
  std::optional<Error> difference(const Made& theirs) const;

  bool tick() override;
  void hear(Rank from, std::string_view calls) override;

  /// Calls that one word of a rank has.
  static constexpr uint64_t kMostTold = 64;

 private:
  /// Details by their hash: the last ones of each place.
  struct Noted {
    uint32_t hash = 0;
    Details details;
  };
  /// What an alltoall exchanges, which each pair must have alike.
  struct Splits {
    uint64_t call = 0;
    std::vector<int64_t> sent, received;  // by rank
  };
  struct Pair {
    int64_t sent = 0, received = 0;  // by the rank that says so
  };
  struct Word {
    uint64_t latest = 0;
    std::vector<Signature> calls;  // up to the latest
    std::map<uint32_t, Details> details;
    std::map<uint64_t, Pair> splits;  // by call
  };

  void note(uint32_t hash, const Call& call);
  std::optional<Pair> split_with(Rank peer, uint64_t call) const;
  std::string said_to(Rank peer) const;
  std::optional<Details> noted(uint32_t hash) const;
  static std::optional<Word> parse(std::string_view calls);
  void compare(Rank from, const Word& word);
  bool compare_splits(Rank from, uint64_t call, const Signature& signature, const Word& word);

  Health& health_;
  const Rank rank_;
  CallLog log_;
  mutable std::mutex mutex_;
  // Written by the thread that executes, under the mutex.
  std::array<Noted, 16> noted_;
  std::array<Splits, 16> splits_;
  // Of the loop's thread.
  std::map<Rank, Word> ahead_;  // of ranks whose latest call this one has yet to make
  uint64_t seen_ = 0;
  unsigned quiet_ticks_ = 0;
  std::atomic<uint64_t> told_{0};
  std::atomic<bool> rests_{true};  // it has no ticks until a call begins
};

}  // namespace ringcoll

// Finds out whether ranks disagree about a call. A message shows it at once if it belongs to
// another call than the receiver's. But ranks may disagree such that each waits for a message that
// nobody sends, or that all send and none receives. So each rank logs its last calls. A rank that
// waits or is done begins no call for a moment. It then tells the log to its peers, which compare
// it with their own (docs/design.md, "Ranks that disagree").
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

/// The last calls of a rank. The thread that executes calls writes it, with a few stores for each
/// call. Any thread reads it.
class CallLog {
 public:
  /// A rank that waits may be behind another by the credits of every link on the path between them.
  /// The log should still have the call in which it waits.
  static constexpr uint64_t kKept = 128;

  /// Adds the call that begins. Precondition: its sequence is latest() + 1, modulo 2^32.
  void add(const Signature& signature);
  /// How many calls were added, which is also the number of the last one.
  uint64_t latest() const { return observe(latest_); }
  /// The n-th call, if the log still has it.
  std::optional<Signature> at(uint64_t n) const;

 private:
  /// A signature without its sequence, which is the number of the call.
  struct Entry {
    std::atomic<int64_t> count{0};
    std::atomic<uint64_t> kind{0};  // the bytes of the signature from `root` on
    std::atomic<uint32_t> details{0};
  };

  std::array<Entry, kKept> entries_;
  std::atomic<uint64_t> latest_{0};
};

/// Compares the calls of one communicator. Any thread, unless a method says otherwise.
class CallWatch final : public HealthListener {
 public:
  /// `health` outlives this object.
  CallWatch(Health& health, Rank rank);
  /// Tells the last calls to the peers, unless they were told already or the group is poisoned.
  ~CallWatch() override;
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// Logs a call before its first message. Only on the thread that executes calls.
  void begin(const Signature& signature, const Call& call) {
    if (signature.details != 0) [[unlikely]]
      note(signature.details, call);
    log_.add(signature);
    if (rests_.load(std::memory_order_relaxed)) [[unlikely]]
      if (rests_.exchange(false)) health_.tick();
  }
  /// Called when messages of the peer do not match this rank's calls. The peer then compares.
  void tell(Rank peer) { health_.tell_calls(peer, said_to(peer)); }
  /// Compares a call of a peer with this rank's call of the same number. Returns nothing if they
  /// are alike, or if this log does not have that call.
  std::optional<Error> difference(const Made& theirs) const;

  bool tick() override;
  void hear(Rank from, std::string_view calls) override;

  /// How many calls one message about calls (Word) contains at most.
  static constexpr uint64_t kMostTold = 64;

 private:
  /// A slot of a table of details, indexed by their hash. A newer entry replaces the older.
  struct Noted {
    uint32_t hash = 0;
    Details details;
  };
  /// The counts of an alltoall. Each pair of ranks must have theirs alike.
  struct Splits {
    uint64_t call = 0;
    std::vector<int64_t> sent, received;  // by rank
  };
  struct Pair {
    int64_t sent = 0, received = 0;  // as counted by the rank that sent the word
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
  // The thread that executes calls writes these, under the mutex.
  std::array<Noted, 16> noted_;
  std::array<Splits, 16> splits_;
  // Only the loop's thread uses these.
  std::map<Rank, Word> ahead_;  // from ranks whose latest call this rank has not begun
  uint64_t seen_ = 0;
  unsigned quiet_ticks_ = 0;
  std::atomic<uint64_t> told_{0};
  std::atomic<bool> rests_{true};  // ticks are stopped until a call begins
};

}  // namespace ringcoll

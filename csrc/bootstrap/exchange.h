// How ranks learn each other's addresses. There is one operation: gather one blob of every rank on
// every rank. It runs over a store, over a function of the caller (MPI), or over connections
// between the ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/types.h"
#include "connect/dialer.h"
#include "store/store.h"

namespace ringcoll {

/// Larger sizes are a mistake or damaged data.
constexpr Rank kMostRanks = 1 << 20;

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;
  /// Returns every rank's blob, in rank order. Collective; blobs may differ in length. Throws
  /// Error(kTimeout) that names missing ranks, or Error(kTransport) if the store cannot be reached.
  virtual std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) = 0;

  /// Call instead of the first all_gather if this rank cannot take part. All other ranks raise
  /// `error` in theirs, even those that come later; this rank waits for them until the deadline.
  /// False: this exchange can tell them only by the contents of an all_gather.
  virtual bool refuse(const Error& /*error*/, Deadline /*deadline*/) { return false; }

  /// Whether all data goes through one place, so that ranks do better to use their own connections
  /// once they have them.
  virtual bool is_over_store() const { return false; }

  /// Call after the last all_gather. Over a store, rank 0 waits until all ranks have read the last
  /// outcome, which may be lost with rank 0's store. It waits for what is left of that all_gather's
  /// deadline. Without this call the destructor waits, for some seconds at most.
  virtual void finish() {}
  /// Reports that a rank has died. From then on finish() does not wait for it.
  virtual void has_died(Rank /*rank*/) {}

  /// `look` is called a few times a second while all_gather or finish() waits for other ranks. What
  /// it throws ends the wait. An exchange over a function of the caller never calls it.
  void while_waiting(std::function<void()> look) { look_ = std::move(look); }

 protected:
  void look() const {
    if (look_) look_();
  }

 private:
  std::function<void()> look_;
};

/// Over a store: each rank sets its own key, rank 0 gathers them and sets one key with all of them.
/// That takes O(size) requests in all. Keys begin with `prefix`, and each all_gather uses fresh
/// ones. Two processes that claim one rank are found and named.
std::unique_ptr<Exchange> make_store_exchange(std::unique_ptr<Store> store,
                                              const std::string& prefix, Rank rank, Rank size);

/// Over a function that gathers blobs of equal length (the C ABI's rc_exchange_fn, MPI_Allgather).
/// Lengths are agreed first, and long blobs go in blocks. `gather` returns false on failure.
using GatherFunction = std::function<bool(const void* mine, size_t bytes, void* all)>;
std::unique_ptr<Exchange> make_function_exchange(GatherFunction gather, Rank rank, Rank size);

/// Over connections between the ranks, along a tree: for ranks that know one another's addresses.
/// They dial in the first all_gather, on kMeetingChannel. Errors name the rank that was waited for.
std::unique_ptr<Exchange> make_tree_exchange(Rank rank, Rank size, Dialer& dialer);

/// How long a rank that cannot take part waits until the others have read why.
inline constexpr double kTellingSeconds = 5;

}  // namespace ringcoll

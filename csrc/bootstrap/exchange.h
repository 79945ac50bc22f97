// How ranks that do not know each other yet learn each other's addresses: one operation, "gather
// one blob of every rank on every rank", over a store, over a function of the caller (MPI), or over
// an existing communicator.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/types.h"
#include "bootstrap/dialer.h"
#include "bootstrap/store.h"

namespace ringcoll {

/// What has more ranks is a mistake, or damaged.
constexpr Rank kMostRanks = 1 << 20;

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;
  /// Every rank's blob, in rank order. Collective; blobs may differ in length. Throws
  /// Error(kTimeout) that names the ranks that did not come, Error(kTransport) if the store is not
  /// there.
  virtual std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) = 0;

  /// Instead of the first all_gather: this rank cannot take part. All others raise `error` in
  /// theirs, those that come later too, for which it waits until the deadline. False: this exchange
  /// has no way to tell them but by what an all_gather carries.
  virtual bool refuse(const Error& /*error*/, Deadline /*deadline*/) { return false; }

  /// Whether ranks that can reach one another had better do so themselves: everything goes through
  /// one place.
  virtual bool is_over_store() const { return false; }

  /// After the last all_gather: waits, as long as that might have, for those that have not read its
  /// outcome, where that lies in a place that goes with this. Else the destructor does, for a
  /// moment.
  virtual void finish() {}
  /// The rank has died. Who waits for those that have not read the last outcome does not wait for
  /// it.
  virtual void has_died(Rank /*rank*/) {}

  /// `look` is called, a few times a second, by an all_gather that waits for other ranks, and by
  /// finish(); what it throws ends the wait. Over a function of the caller it is not called.
  void while_waiting(std::function<void()> look) { look_ = std::move(look); }

 protected:
  void look() const {
    if (look_) look_();
  }

 private:
  std::function<void()> look_;
};

/// Over a store: each rank sets its own key, rank 0 gathers them and sets one key with all (O(size)
/// requests in all). Keys begin with `prefix`; each all_gather uses fresh ones. Two processes that
/// claim one rank are found and named.
std::unique_ptr<Exchange> make_store_exchange(std::unique_ptr<Store> store,
                                              const std::string& prefix, Rank rank, Rank size);

/// Over a function that gathers blobs of equal length (the C ABI's rc_exchange_fn, MPI_Allgather);
/// lengths are agreed first, and long blobs go in blocks. `gather` returns false on failure.
using GatherFunction = std::function<bool(const void* mine, size_t bytes, void* all)>;
std::unique_ptr<Exchange> make_function_exchange(GatherFunction gather, Rank rank, Rank size);

/// Over connections between the ranks, along a tree: for those that know one another's addresses
/// already. Each dials on the first all_gather, on a channel of its own. Its errors name the rank
/// that was waited for.
std::unique_ptr<Exchange> make_tree_exchange(Rank rank, Rank size, Dialer& dialer);
inline constexpr uint32_t kMeetingChannel = 31;

/// How long a rank that cannot take part waits for others that are to hear why.
inline constexpr double kTellingSeconds = 5;

}  // namespace ringcoll

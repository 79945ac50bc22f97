// Which receive gets which message: by source or any, and tag or any. Messages of one sender that a
// receive fits are matched in the order in which they were sent, and receives that a message fits
// in the order in which they were posted. Pure: nothing here moves a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "p2p/transfer.h"

namespace ringcoll {

/// A message that came before it was asked for.
struct Arrival {
  Rank source = kNobody;
  int32_t tag = 0;
  uint64_t bytes = 0;
  uint64_t order = 0;  // among all
  // One of three:
  std::unique_ptr<std::byte[]> kept;  // a short one, which is here
  bool announced = false;             // a long one, which is with the sender
  Transfer* own = nullptr;            // of this rank itself, in the caller's memory
  // A short one.
  bool whole = false;         // all of it has come
  Transfer* taker = nullptr;  // the receive that waits for the rest
  // A long one.
  uint64_t number = 0;   // of the announcement
  uint64_t address = 0;  // in the sender's memory
};
using ArrivalPtr = std::unique_ptr<Arrival>;

/// One thread at a time.
class Matching {
 public:
  /// The message that a receive is to get, the oldest that fits, which stays; null: none.
  Arrival* find(const Transfer& receive) const;
  ArrivalPtr remove(Arrival* arrival);
  /// A message that no posted receive fits. Returns where it is kept until it is removed.
  Arrival* keep(ArrivalPtr arrival);

  /// Gives a receive its place among all, unless it has one.
  void line_up(Transfer* receive) {
    if (receive->order == 0) receive->order = ++posted_;
  }
  /// A receive that no message fits. One that had been posted before has its place again.
  void post(Transfer* receive);
  /// The receive that a message is for, the oldest that fits, which is no longer posted; null.
  Transfer* take(Rank source, int32_t tag);
  void withdraw(Transfer* receive);
  /// The message of this rank itself that is still in its caller's memory.
  void remove_own(const Transfer* send);
  /// The message that a peer has announced by that number, if it is here.
  void remove_announced(Rank source, uint64_t number);

  /// Forgets all, arrivals with what they keep.
  void clear();
  size_t arrivals() const;

 private:
  using Arrivals = std::list<ArrivalPtr>;
  Arrival* first_of(const Arrivals& arrivals, int32_t tag) const;
  static Transfer* first_for(const Transfers& receives, int32_t tag);

  uint64_t arrived_ = 0, posted_ = 0;
  // By source; an entry stays once it was needed.
  std::unordered_map<Rank, Arrivals> arrivals_;
  std::unordered_map<Rank, Transfers> receives_;
  Transfers from_any_;
};

}  // namespace ringcoll

// Matches messages with receives, by source or any source, and by tag or any tag. A receive takes
// the oldest message that matches it. A message goes to the oldest receive that matches it. So
// messages of one sender that match one receive are received in the order in which they were sent.
// Pure: nothing here moves a byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "p2p/transfer.h"

namespace ringcoll {

/// An unexpected message: it came before its receive was posted.
struct Arrival {
  Rank source = kNobody;
  int32_t tag = 0;
  uint64_t bytes = 0;
  uint64_t order = 0;  // of arrival, among messages of all sources
  // One of these three says where the payload is.
  std::unique_ptr<std::byte[]> kept;  // short: here
  bool announced = false;             // long: with the sender
  Transfer* own = nullptr;            // sent by this rank to itself: in the caller's memory
  // Of a short message.
  bool whole = false;         // all of it has come
  Transfer* taker = nullptr;  // the receive that waits for the rest
  // Of a long message.
  uint64_t number = 0;   // of the announcement
  uint64_t address = 0;  // in the sender's process
};
using ArrivalPtr = std::unique_ptr<Arrival>;

/// One thread at a time.
class Matching {
 public:
  /// The oldest message that matches the receive; it stays. Null if there is none.
  Arrival* find(const Transfer& receive) const;
  ArrivalPtr remove(Arrival* arrival);
  /// Keeps a message that matches no posted receive. The returned pointer is valid until remove().
  Arrival* keep(ArrivalPtr arrival);

  /// Gives a receive its place in the order of all receives, unless it has one.
  void line_up(Transfer* receive) {
    if (receive->order == 0) receive->order = ++posted_;
  }
  /// Posts a receive that no message matches. A receive that was posted before gets its old place.
  void post(Transfer* receive);
  /// The oldest posted receive that matches the message; it is no longer posted. Null if there is
  /// none.
  Transfer* take(Rank source, int32_t tag);
  void withdraw(Transfer* receive);
  /// Removes the message that `send` sends to this rank itself, from its caller's memory.
  void remove_own(const Transfer* send);
  /// Removes the message that the peer announced by this number, if it is here.
  void remove_announced(Rank source, uint64_t number);

  /// Forgets all receives and messages, and frees what was kept.
  void clear();
  size_t arrivals() const;

 private:
  using Arrivals = std::list<ArrivalPtr>;
  Arrival* first_of(const Arrivals& arrivals, int32_t tag) const;
  static Transfer* first_for(const Transfers& receives, int32_t tag);

  uint64_t arrived_ = 0, posted_ = 0;
  // By source. An entry stays when its list is empty.
  std::unordered_map<Rank, Arrivals> arrivals_;
  std::unordered_map<Rank, Transfers> receives_;
  Transfers from_any_;
};

}  // namespace ringcoll

// Memory of the caller that the device may use without a copy.
//
// Registering memory costs about as much as copying it once. So a tensor is registered when it
// comes back (the second call with the same address and length), and stays registered. At most
// `most_bytes` are registered, counted in each domain; the least recently used make room.
//
// A device pins the pages that were there when it registered. If memory is freed and mapped anew, a
// region that is kept by its address would send from, and be written to, pages where nobody looks.
// So every registered range is watched (common_watch.h), and each call begins by forgetting what
// has changed. A change may be reported late, of earlier memory at the address. If much has
// changed, more may be reported than has. So calls in flight go on with what they were granted, and
// with nothing else: that memory is theirs until they end, and cannot change. Where the kernel does
// not offer the watch, nothing is registered. No function is hooked, so any allocator may be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "transport/verbs/common_watch.h"
#include "verbs/handles.h"

namespace ringcoll::rdma {

/// One thread at a time.
class Registrations {
 public:
  Registrations(uint64_t most_bytes, CommonWatch& watch) : most_bytes_(most_bytes), watch_(watch) {}

  /// Registers memory in this domain, too, from now on; what was granted is registered at once.
  /// Memory that no call in flight uses makes room for it. The domain outlives this. Throws
  /// Error(kTransport) if granted memory cannot be registered there.
  void add(const verbs::ProtectionDomain& domain);
  /// Begins a call; the last `in_flight` calls before it have not ended. Grants those of its loans
  /// that are registered, or can be now. If memory cannot be registered, this does not throw, and
  /// the loan is not granted.
  void lend(std::span<Loan> loans, size_t in_flight);
  /// The region, in this domain, of memory that was granted to a call in flight; null if it was not
  /// granted. `written`: only if it may be written to.
  const verbs::MemoryRegion* find(const verbs::ProtectionDomain& domain, const void* data,
                                  uint64_t bytes, bool written) const;
  /// Deregisters everything: until the next call, no device and no peer reaches any of it.
  void forget_all() { entries_.clear(), lent_.clear(), rests_.clear(), registered_bytes_ = 0; }

  uint64_t registered_bytes() const { return registered_bytes_; }

 private:
  using Regions = std::vector<verbs::MemoryRegion>;  // in each domain
  struct Entry {
    uint64_t bytes = 0;
    bool written = false;
    uint64_t call = 0;  // number of the last call that used it
    std::shared_ptr<Regions> regions;
  };
  using Entries = std::map<uintptr_t, Entry>;  // by address; disjoint
  struct Lent {
    uintptr_t first = 0;
    uint64_t bytes = 0;
    uint64_t call = 0;  // number of the call that lent it
  };
  struct Sighting {
    uint64_t bytes = 0;
    bool written = false;
  };

  void register_all(const verbs::ProtectionDomain& domain);
  void forget_unused(uint64_t most_bytes);
  bool in_use(const Entry& entry) const { return entry.call >= oldest_; }
  const Entry* granted(uintptr_t first, uint64_t bytes) const;
  void keep_lent(uintptr_t first, const Entry& entry);
  bool grant(const Loan& loan);
  bool seen_before(const Loan& loan);
  bool add(const Loan& loan);
  void take_changes();
  bool make_room(uintptr_t first, uint64_t bytes);
  bool watch(const Loan& loan);
  void forget(uintptr_t first, uintptr_t end);
  Entries::iterator erase(Entries::iterator entry);
  Entries::iterator first_reaching(uintptr_t address);

  std::vector<const verbs::ProtectionDomain*> domains_;
  uint64_t most_bytes_;
  uint64_t registered_bytes_ = 0;
  uint64_t call_ = 0;    // number of the newest call
  uint64_t oldest_ = 0;  // number of the oldest call in flight
  Entries entries_;
  std::vector<Lent> lent_;  // what calls in flight were granted
  // Memory granted to calls in flight whose entry was forgotten since, with its regions.
  std::vector<std::pair<uintptr_t, Entry>> rests_;
  std::unordered_map<uintptr_t, Sighting> sightings_;  // by address: loans that have come once
  CommonWatch::Listener watch_;
};

}  // namespace ringcoll::rdma

// Memory of the caller's that the device may use without a copy.
//
// Registering costs about as much as copying what is registered once, so a tensor is registered
// when it comes back (the second call with the same address and length), and stays so. At most
// `most_bytes` are, counted in each domain: the least recently used make room.
//
// Safe against memory that is freed and mapped anew: a device pins the pages that were there when
// it registered, so a region that is kept by its address would later send, and be written to,
// where nobody looks. Every registered range is therefore watched (common_watch.h), and each
// call begins by forgetting what has changed. That may be told late, of what was there before, or
// of more than has changed, where much has. So calls in flight go on with what they were granted,
// and with nothing else: that is theirs until they end, and cannot change. Where the kernel does
// not offer the watch, nothing is registered. Nothing is hooked, so it does not matter which
// allocator is used.
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

  /// From now on memory is registered in this domain, too, and what was granted is at once; what no
  /// call in flight uses makes room for it. The domain outlives this. Throws Error(kTransport) if
  /// what was granted cannot be registered there.
  void add(const verbs::ProtectionDomain& domain);
  /// A call begins, and the last `in_flight` before it have not ended: grants of its loans what is
  /// registered, or can be now. Never throws for memory that cannot be registered; that is not
  /// granted.
  void lend(std::span<Loan> loans, size_t in_flight);
  /// The region, in one of the domains, of memory that was granted to a call in flight, `written`
  /// if it may be written to; null: it was not granted.
  const verbs::MemoryRegion* find(const verbs::ProtectionDomain& domain, const void* data,
                                  uint64_t bytes, bool written) const;
  /// Until the next call, no device and no peer reaches any of it.
  void forget_all() { entries_.clear(), lent_.clear(), rests_.clear(), registered_bytes_ = 0; }

  uint64_t registered_bytes() const { return registered_bytes_; }

 private:
  using Regions = std::vector<verbs::MemoryRegion>;  // in each domain
  struct Entry {
    uint64_t bytes = 0;
    bool written = false;
    uint64_t call = 0;  // that used it last
    std::shared_ptr<Regions> regions;
  };
  using Entries = std::map<uintptr_t, Entry>;  // by address; disjoint
  struct Lent {
    uintptr_t first = 0;
    uint64_t bytes = 0;
    uint64_t call = 0;  // that lent it
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
  uint64_t call_ = 0;    // that lent last
  uint64_t oldest_ = 0;  // of those in flight
  Entries entries_;
  std::vector<Lent> lent_;  // what calls in flight were granted
  // Those of them whose registration was forgotten since, with its regions.
  std::vector<std::pair<uintptr_t, Entry>> rests_;
  std::unordered_map<uintptr_t, Sighting> sightings_;  // by address: what has come once
  CommonWatch::Listener watch_;
};

}  // namespace ringcoll::rdma

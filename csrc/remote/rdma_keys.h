// The keys of this agent's regions, by which peers' devices read and write them. A region is
// registered, exactly its range, when a peer first asks for its key. No key opens a byte outside
// it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "remote/link.h"
#include "remote/regions.h"
#include "transport/verbs/open_port.h"
#include "verbs/handles.h"

namespace ringcoll::remote {

struct RdmaKey {
  uint64_t address = 0;  // of the region's first byte
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  bool writable = false;
};

class RdmaKeys {
 public:
  /// `most_bytes`: RINGCOLL_REGISTER_BYTES. Beyond that the regions whose keys were asked for the
  /// longest ago are deregistered.
  RdmaKeys(Regions& regions, uint64_t most_bytes) : regions_(regions), most_bytes_(most_bytes) {}

  /// The key of a region for the peer at the other end of `asker`, which is told when the key
  /// becomes invalid. Takes long when it registers. Throws Error: kGone, or kTransport if the
  /// region cannot be registered. One thread at a time.
  RdmaKey key_of(const std::shared_ptr<rdma::OpenPort>& port, uint32_t region, uint64_t secret,
                 const std::shared_ptr<Link>& asker);
  /// No device reads or writes the region once this has returned. Precondition: it is refused
  /// (Regions::refuse()). Any thread.
  void forget(const Region& region);

 private:
  struct Entry {
    std::shared_ptr<rdma::OpenPort> port;  // outlives the registration
    verbs::MemoryRegion memory;
    uint64_t secret = 0;
    bool writable = false;
    uint64_t asked = 0;  // number of the last question
    std::vector<std::weak_ptr<Link>> askers;
  };
  using Entries = std::map<std::pair<uint32_t, const rdma::OpenPort*>, Entry>;

  Entry take(Entries::iterator entry);
  bool evict_one();
  void make_room(uint64_t bytes);
  verbs::MemoryRegion register_region(const rdma::OpenPort& port, const Region& region);

  Regions& regions_;
  const uint64_t most_bytes_;
  std::mutex mutex_;
  uint64_t questions_ = 0;
  uint64_t registered_bytes_ = 0;
  Entries entries_;
};

}  // namespace ringcoll::remote

// The keys of this agent's regions, by which peers' devices read and write them. A region is
// registered, exactly its range, when a peer first asks for its key. No key opens a byte outside
// it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
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
  /// (Regions::refuse()). Waits at most `patience` for peers that use it, for otherwise they lose
  /// their queue pairs. Any thread.
  void forget(const Region& region, Duration patience);
  /// The peer does not use the key any more (kKeyLeft), or any key: its link has ended. Any thread.
  void left(const Link& link, uint32_t region, uint64_t secret);
  void left(const Link& link);

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

  /// A key that is about to become invalid, and the peers that may still use it.
  struct Leaving {
    uint32_t region;
    uint64_t secret;
    std::set<const Link*> users;
  };

  Entry take(Entries::iterator entry);
  void see_off(const std::vector<Entry>& entries, uint32_t region, Duration patience);
  bool evict_one();
  void make_room(uint64_t bytes);
  verbs::MemoryRegion register_region(const rdma::OpenPort& port, const Region& region);

  Regions& regions_;
  const uint64_t most_bytes_;
  std::mutex mutex_;
  uint64_t questions_ = 0;
  uint64_t registered_bytes_ = 0;
  Entries entries_;
  std::list<Leaving> leaving_;
  std::set<const Link*> silent_;
  std::condition_variable left_;
};

}  // namespace ringcoll::remote

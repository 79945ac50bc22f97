// Serves the regions of this process to peers over links.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "remote/link.h"
#include "remote/regions.h"

namespace ringcoll::remote {

class Server {
 public:
  explicit Server(Regions& regions) : regions_(regions) {}

  /// Where the body of a kWrite goes; nowhere if it is refused, which take() then says. Called with
  /// the link's lock, on the loop's thread.
  Place place_for(const std::shared_ptr<Link>& link, const FrameHead& head);
  /// A kRead, kWrite or kNotice is complete. On the loop's thread.
  void take(const std::shared_ptr<Link>& link, const FrameHead& head);
  /// Links that read or write the region now stop doing so; those in the middle of a body end. Any
  /// thread.
  void give_up(const Region& region);
  /// Bytes that peers have read and written by this.
  uint64_t answered_bytes() const { return answered_bytes_.load(std::memory_order_relaxed); }

 private:
  /// The region's use by a link, from a request until its bytes have passed.
  struct Use {
    std::weak_ptr<Link> link;
    std::weak_ptr<RegionUse> use;
    const Region* region;
  };
  std::shared_ptr<RegionUse> use(const std::shared_ptr<Link>& link, const FrameHead& head,
                                 bool writes);

  Regions& regions_;
  std::atomic<uint64_t> answered_bytes_ = 0;
  std::mutex mutex_;
  std::vector<Use> uses_;
};

}  // namespace ringcoll::remote

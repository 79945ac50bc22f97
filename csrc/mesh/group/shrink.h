// Makes a group of the remaining ranks of a group.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "mesh/group/group.h"
#include "mesh/mesh.h"

namespace ringcoll {

/// The work of one rank in the `round`-th shrink of a group, which may have failed or not.
/// Collective over the living ranks of the group; it needs neither a store nor the ranks that are
/// gone. `mesh` and `group` outlive it. Any thread, one at a time.
class Shrink {
 public:
  Shrink(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round);
  ~Shrink();
  Shrink(const Shrink&) = delete;
  Shrink& operator=(const Shrink&) = delete;

  /// Returns a group of the remaining ranks, in the old order, with the same ranks everywhere. A
  /// rank that ends meanwhile may be among them; the next call of the new group then fails.
  ///
  /// Throws Error. kTimeout names a rank that has not come by the deadline. run() may be called
  /// again after it, since earlier ballots of this rank stand. kAborted follows when `is_aborted`
  /// returns true, which is asked every few milliseconds; run() may be called again, too.
  /// kPeerLost, every time, means that the others hold this rank for lost. kTransport, on all
  /// ranks, means that one has no room for another group.
  std::unique_ptr<Group> run(Deadline deadline, const std::function<bool()>& is_aborted);
  /// True if the remaining ranks are decided: run() must not be called again.
  bool is_over() const;

 private:
  class Part;
  std::unique_ptr<Part> part_;
};

}  // namespace ringcoll

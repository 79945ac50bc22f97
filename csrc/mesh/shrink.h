// The group of those of a group who are left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "mesh/group.h"
#include "mesh/mesh.h"

namespace ringcoll {

/// One rank's part in the `round`-th shrink of a group, which has failed or not. Collective over
/// the ranks of the group that live; needs neither a store nor the ranks that are gone. `mesh` and
/// `group` outlive it. Any thread, one at a time.
class Shrink {
 public:
  Shrink(const std::shared_ptr<Mesh>& mesh, Group& group, uint64_t round);
  ~Shrink();
  Shrink(const Shrink&) = delete;
  Shrink& operator=(const Shrink&) = delete;

  /// All who are left get a group of the same ranks, in the order of the old one, which may hold
  /// one that ends meanwhile: its next call fails. Throws Error: kTimeout naming who has not come
  /// by the deadline, after which it may be called again: what this rank has said to the others
  /// stands; kPeerLost, every time, if the others hold this rank for lost; kTransport, on all, if
  /// one has no room for another group; kAborted once `is_aborted`, which is asked every few
  /// milliseconds, after which it may be called again, too.
  std::unique_ptr<Group> run(Deadline deadline, const std::function<bool()>& is_aborted);
  /// Whether it is decided who is left: run() is not to be called again.
  bool is_over() const;

 private:
  class Part;
  std::unique_ptr<Part> part_;
};

}  // namespace ringcoll

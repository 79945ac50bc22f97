// What the families of schedules share, and the rows they offer to the registry. For schedule/
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// The ranks in a circle that begins at the root: position 0 is the root. Schedules that have no
/// root count from rank 0.
struct Circle {
  Rank position = 0;
  Rank size = 1;
  Rank root = 0;

  explicit Circle(const Problem& problem, Rank root = 0)
      : position((problem.rank - root + problem.size) % problem.size),
        size(problem.size),
        root(root) {}
  /// The rank at a position; counts on round the circle from -size to 2 size.
  Rank rank_at(Rank at) const { return (at + root + size) % size; }
};

/// Chunks of given counts, one after another.
class Chunks {
 public:
  explicit Chunks(std::span<const int64_t> counts) : offsets_(offsets_of(counts)) {}

  Rank size() const { return static_cast<Rank>(offsets_.size()) - 1; }
  int64_t total() const { return offsets_.back(); }
  /// Chunk i, counted on round the circle from -size to 2 size.
  Range at(Rank i) const {
    Rank chunk = (i + size()) % size();
    return between(chunk, chunk + 1);
  }
  /// The chunks first … end-1, without counting on.
  Range between(Rank first, Rank end) const {
    return {offsets_[first], offsets_[end] - offsets_[first]};
  }

 private:
  std::vector<int64_t> offsets_;
};

/// The split of an allreduce, broadcast or reduce: as even as can be, the root's chunk first.
inline Chunks even_chunks(const Problem& problem) {
  return Chunks(even_counts(problem.counts[0], problem.size));
}

inline int floor_log2(Rank n) { return 31 - __builtin_clz(static_cast<uint32_t>(n)); }
inline int ceil_log2(Rank n) { return n <= 1 ? 0 : floor_log2(n - 1) + 1; }

/// Adds a round. An end of the step that has no elements becomes nobody's, so that a peer's name
/// always means a message.
void add_round(Schedule& schedule, Step step);
/// What a rank pays for its own schedule.
Cost cost_of(const Schedule& schedule, Rank rank);

// Builders. The circle's position p owns chunk p before an allgather and after a reduce-scatter.
Schedule ring_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule ring_allgather(const Circle& circle, const Chunks& chunks);
Schedule pairwise_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule pairwise_allgather(const Circle& circle, const Chunks& chunks);
/// Each position sends its chunk to position 0.
Schedule linear_gather(const Circle& circle, const Chunks& chunks);
/// Position 0 hands out the chunks; a position then has those of its subtree.
Schedule binomial_scatter(const Circle& circle, const Chunks& chunks);
/// The position after the last of the subtree below `position`.
Rank subtree_end(Rank position, Rank size);
/// Rounds with a message of position p in a ring reduce-scatter.
int64_t ring_reduce_scatter_rounds(const Chunks& chunks, Rank position);

// Rows: each beside its code.
ScheduleRow allreduce_ring();
ScheduleRow reduce_scatter_ring();
ScheduleRow allgather_ring();
ScheduleRow allreduce_direct();
ScheduleRow reduce_scatter_direct();
ScheduleRow allgather_direct();
ScheduleRow alltoall_direct();
ScheduleRow allreduce_recursive_doubling();
ScheduleRow allreduce_halving_doubling();
ScheduleRow broadcast_binomial();
ScheduleRow reduce_binomial();
ScheduleRow broadcast_scatter_allgather();
ScheduleRow reduce_scatter_gather();
ScheduleRow broadcast_direct();
ScheduleRow gather_direct();
ScheduleRow scatter_direct();
ScheduleRow barrier_dissemination();

}  // namespace ringcoll

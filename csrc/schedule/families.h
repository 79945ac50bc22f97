// What the families of schedules share, and the rows they offer to the registry. For schedule/
// only.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// Ranks in a circle: all of them from the root on, or some of them, in the order of `members`.
/// Schedules that have no root count from rank 0.
struct Circle {
  Rank position = 0;
  Rank size = 1;
  Rank root = 0;
  std::vector<Rank> members;  // by position; empty: all ranks

  explicit Circle(const Problem& problem, Rank root = 0)
      : position((problem.rank - root + problem.size) % problem.size),
        size(problem.size),
        root(root) {}
  Circle(Rank position, std::vector<Rank> members)
      : position(position),
        size(static_cast<Rank>(members.size())),
        root(members[0]),
        members(std::move(members)) {}
  /// The rank at a position; counts on round the circle from -size to 2 size.
  Rank rank_at(Rank at) const {
    return members.empty() ? (at + root + size) % size : members[(at + size) % size];
  }
};

/// Chunks of given counts, one after another.
class Chunks {
 public:
  explicit Chunks(std::span<const int64_t> counts, int64_t first = 0)
      : parts_(static_cast<Rank>(counts.size())), offsets_(offsets_of(counts)) {
    for (int64_t& offset : offsets_) offset += first;
  }
  /// As even_counts() splits a range; where they begin is worked out when it is asked for, since
  /// some schedules look at few of very many.
  Chunks(Range range, Rank parts) : range_(range), parts_(parts) {}

  Rank size() const { return parts_; }
  int64_t total() const { return offset(parts_) - offset(0); }
  /// Chunk i, counted on round the circle from -size to 2 size.
  Range at(Rank i) const {
    Rank chunk = (i + size()) % size();
    return between(chunk, chunk + 1);
  }
  /// The chunks first … end-1, without counting on.
  Range between(Rank first, Rank end) const { return {offset(first), offset(end) - offset(first)}; }

 private:
  int64_t offset(Rank i) const {
    return offsets_.empty() ? range_.first + even_start(range_.count, parts_, i) : offsets_[i];
  }

  Range range_;
  Rank parts_;
  std::vector<int64_t> offsets_;  // empty: of `range_`
};

/// The split of an allreduce, broadcast or reduce: as even as can be, the root's chunk first.
inline Chunks even_chunks(const Problem& problem) {
  return {Range{0, problem.counts[0]}, problem.size};
}
inline Chunks even_chunks(Range range, Rank parts) { return {range, parts}; }

inline int floor_log2(Rank n) { return 31 - __builtin_clz(static_cast<uint32_t>(n)); }
inline int ceil_log2(Rank n) { return n <= 1 ? 0 : floor_log2(n - 1) + 1; }

/// Adds a round. An end of the step that has no elements becomes nobody's, so that a peer's name
/// always means a message.
void add_round(Schedule& schedule, Step step);
/// The way back: what every rank was sent, it sends, and what it sent, it receives.
Schedule backwards(Schedule schedule);
/// The way back of a sum: what every rank was sent, it sends; what it sent, it receives and
/// combines. Made of a schedule in which every rank receives each element once at most (or has it),
/// this reduces where that one spreads: an allgather becomes a reduce-scatter, a broadcast a
/// reduce.
Schedule transposed(Schedule schedule);
/// The same of what all ranks send; its rounds in any order.
std::vector<Traffic> transposed(std::vector<Traffic> phases);
/// Rounds one by one in turn: the first of each schedule, then the second of each … Schedules that
/// are shorter than `rounds` are idle then.
Schedule interleaved(const std::vector<Schedule>& schedules, size_t rounds);

// Builders. The circle's position p owns chunk p before an allgather and after a reduce-scatter.
Schedule ring_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule ring_allgather(const Circle& circle, const Chunks& chunks);
Schedule pairwise_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule pairwise_allgather(const Circle& circle, const Chunks& chunks);
Schedule doubling_allgather(const Circle& circle, const Chunks& chunks);
/// Whole ranges, combined on all.
Schedule recursive_doubling(const Circle& circle, Range range);
Schedule halving_doubling(const Circle& circle, Range range);
/// Position 0 has the range; all get it.
Schedule binomial_broadcast(const Circle& circle, Range range);
Schedule chain_broadcast(const Circle& circle, Range range);
/// Each position sends its chunk to position 0. Back to front, position 0 hands them out.
Schedule linear_gather(const Circle& circle, const Chunks& chunks);
/// Position 0 hands out the chunks; a position then has those of its subtree. And the way back.
Schedule binomial_scatter(const Circle& circle, const Chunks& chunks);
Schedule binomial_gather(const Circle& circle, const Chunks& chunks);
/// After such a gather, and when position 0 has all of `whole`: each gets what its subtree, whose
/// chunks are a part of that, has not had.
Schedule binomial_completion(const Circle& circle, const Chunks& chunks, Range whole);
/// The position after the last of the subtree below `position`.
Rank subtree_end(Rank position, Rank size);

/// Elements of a vector whose closed forms are worked out: so many that what rounding adds is
/// nothing.
inline constexpr int64_t kPricedElements = int64_t{1} << 40;
/// What the members of a circle send in a round of a ring.
void add_ring(Traffic& traffic, const Circle& circle, double share, Combine combine);
/// Rounds in which each rank sends `share` to the one that is i * `stride` further, i from 1 on, of
/// all ranks in a circle. Those are alike in which no message stays within the largest groups that
/// are not all ranks. Nothing if groups of a level differ in size, or if it is too much to tell.
std::vector<Traffic> traffic_by_distance(const Problem& problem, Rank stride, double share);
/// Of linear_gather() and its way back, if each position has this share.
std::vector<Traffic> linear_gather_traffic(const Circle& circle, double share);
std::vector<Traffic> linear_scatter_traffic(const Circle& circle, double share);

// Rows: each beside its code.
ScheduleRow allreduce_ring();
ScheduleRow reduce_scatter_ring();
ScheduleRow allgather_ring();
ScheduleRow allreduce_direct();
ScheduleRow allreduce_one_shot();
ScheduleRow reduce_scatter_direct();
ScheduleRow allgather_direct();
ScheduleRow alltoall_direct();
ScheduleRow allreduce_recursive_doubling();
ScheduleRow allreduce_halving_doubling();
ScheduleRow allgather_doubling();
ScheduleRow reduce_scatter_halving();
ScheduleRow broadcast_binomial();
ScheduleRow reduce_binomial();
ScheduleRow broadcast_chain();
ScheduleRow reduce_chain();
ScheduleRow broadcast_scatter_allgather();
ScheduleRow reduce_scatter_gather();
ScheduleRow broadcast_direct();
ScheduleRow gather_direct();
ScheduleRow gather_binomial();
ScheduleRow scatter_direct();
ScheduleRow scatter_binomial();
ScheduleRow barrier_dissemination();
// Within hosts / between hosts.
ScheduleRow allreduce_direct_ring();
ScheduleRow allreduce_direct_halving_doubling();
ScheduleRow allreduce_direct_recursive_doubling();
ScheduleRow allreduce_binomial_recursive_doubling();
ScheduleRow allgather_direct_ring();
ScheduleRow allgather_binomial_doubling();
ScheduleRow reduce_scatter_direct_ring();
ScheduleRow reduce_scatter_binomial_halving();
ScheduleRow alltoall_direct_direct();
ScheduleRow broadcast_direct_chain();
ScheduleRow broadcast_binomial_binomial();
ScheduleRow reduce_direct_chain();
ScheduleRow reduce_binomial_binomial();
ScheduleRow barrier_binomial_dissemination();

}  // namespace ringcoll

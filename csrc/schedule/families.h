// What the families of schedules share, and the rows of the registry. Private to schedule/.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/types.h"
#include "schedule/schedule.h"

namespace ringcoll {

/// Ranks in a circle: all ranks, beginning with the root, or the ranks of `members` in their order.
/// Schedules without a root begin with rank 0.
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
  /// The rank at a position. Positions wrap around the circle; `at` is between -size and 2 size.
  Rank rank_at(Rank at) const {
    return members.empty() ? (at + root + size) % size : members[(at + size) % size];
  }
};

/// Consecutive chunks of given counts.
class Chunks {
 public:
  explicit Chunks(std::span<const int64_t> counts, int64_t first = 0)
      : parts_(static_cast<Rank>(counts.size())), offsets_(offsets_of(counts)) {
    for (int64_t& offset : offsets_) offset += first;
  }
  /// The split of even_counts(). Boundaries are computed on demand, since some schedules read few
  /// of very many chunks.
  Chunks(Range range, Rank parts) : range_(range), parts_(parts) {}

  Rank size() const { return parts_; }
  int64_t total() const { return offset(parts_) - offset(0); }
  /// Chunk i. Indices wrap around; `i` is between -size and 2 size.
  Range at(Rank i) const {
    Rank chunk = (i + size()) % size();
    return between(chunk, chunk + 1);
  }
  /// Chunks first … end-1 as one range, without wrapping around.
  Range between(Rank first, Rank end) const { return {offset(first), offset(end) - offset(first)}; }

 private:
  int64_t offset(Rank i) const {
    return offsets_.empty() ? range_.first + even_start(range_.count, parts_, i) : offsets_[i];
  }

  Range range_;
  Rank parts_;
  std::vector<int64_t> offsets_;  // empty: even chunks of `range_`
};

/// The even split of an allreduce, broadcast or reduce. Position p of the circle has chunk p, so
/// the root has the first.
inline Chunks even_chunks(const Problem& problem) {
  return {Range{0, problem.counts[0]}, problem.size};
}
inline Chunks even_chunks(Range range, Rank parts) { return {range, parts}; }

inline int floor_log2(Rank n) { return 31 - __builtin_clz(static_cast<uint32_t>(n)); }
inline int ceil_log2(Rank n) { return n <= 1 ? 0 : floor_log2(n - 1) + 1; }

/// Adds a round. If a range of the step is empty, its peer becomes kNobody, so that a peer always
/// means a message.
void add_round(Schedule& schedule, Step step);
/// The schedule in reverse: every rank sends what it received, and receives what it sent.
Schedule backwards(Schedule schedule);
/// backwards(), and every rank combines what it receives. `schedule` must deliver each element to a
/// rank at most once, and never to a rank that has it. An allgather becomes a reduce-scatter, and a
/// broadcast becomes a reduce.
Schedule transposed(Schedule schedule);
/// The same for the messages of all ranks. The order of the rounds stays, as no cost depends on it.
std::vector<Traffic> transposed(std::vector<Traffic> phases);
/// Interleaves the rounds: the first of each schedule, then the second of each, and so on. A
/// schedule shorter than `rounds` is idle after its end.
Schedule interleaved(const std::vector<Schedule>& schedules, size_t rounds);

// Builders. Position p of the circle owns chunk p before an allgather and after a reduce-scatter.
Schedule ring_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule ring_allgather(const Circle& circle, const Chunks& chunks);
Schedule pairwise_reduce_scatter(const Circle& circle, const Chunks& chunks);
Schedule pairwise_allgather(const Circle& circle, const Chunks& chunks);
Schedule doubling_allgather(const Circle& circle, const Chunks& chunks);
/// Every position has the whole range, and ends with the combination of all.
Schedule recursive_doubling(const Circle& circle, Range range);
Schedule halving_doubling(const Circle& circle, Range range);
/// Position 0 has the range and sends it to all.
Schedule binomial_broadcast(const Circle& circle, Range range);
Schedule chain_broadcast(const Circle& circle, Range range);
/// Each position sends its chunk to position 0. backwards() of it is a scatter from position 0.
Schedule linear_gather(const Circle& circle, const Chunks& chunks);
/// Position 0 distributes the chunks; each position ends with the chunks of its subtree. The gather
/// is the reverse.
Schedule binomial_scatter(const Circle& circle, const Chunks& chunks);
Schedule binomial_gather(const Circle& circle, const Chunks& chunks);
/// Completes an allgather after binomial_gather(), once position 0 has all of `whole`. The chunks
/// are a part of `whole`. Each position receives all but the chunks of its own subtree.
Schedule binomial_completion(const Circle& circle, const Chunks& chunks, Range whole);
/// The position after the last one of the subtree of `position`.
Rank subtree_end(Rank position, Rank size);

/// Elements of the vector that is priced: so many that rounding to whole elements does not matter.
inline constexpr int64_t kPricedElements = int64_t{1} << 40;
/// Adds the messages that the members of a circle send in one round of a ring.
void add_ring(Traffic& traffic, const Circle& circle, double share, Combine combine);
/// The rounds in which every rank sends `share` to the rank at distance i * `stride`, for all i
/// from 1 on, in the circle of all ranks. Rounds count as one repeated round if no message stays
/// within a largest group that is not all ranks. Empty if groups of a level differ in size, or if
/// there would be too many messages.
std::vector<Traffic> traffic_by_distance(const Problem& problem, Rank stride, double share);
/// The messages of linear_gather() and of its reverse, if each position has this share.
std::vector<Traffic> linear_gather_traffic(const Circle& circle, double share);
std::vector<Traffic> linear_scatter_traffic(const Circle& circle, double share);

// The rows. Each is defined in the file of its schedule.
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
ScheduleRow scan_chain();
ScheduleRow scan_recursive_doubling();
ScheduleRow exscan_chain();
ScheduleRow exscan_recursive_doubling();
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

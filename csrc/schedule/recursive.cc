// Recursive doubling and halving: partners are at distances 1, 2, 4 … (or … 4, 2, 1). The number of
// rounds grows with the logarithm of the number of ranks.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// Int. J. High Perform. Comput. Appl. 19 (2005); Rabenseifner, "Optimization of collective
// reduction operations", ICCS 2004.
#include <utility>

#include "schedule/families.h"

namespace ringcoll {
namespace {

/// Reduces any number of positions to a power of two, called seats. Of the first 2 `extra`
/// positions, each even one sends its vector to the odd one after it, and gets the result at the
/// end. Seats are in the order of positions. So combining with the lower rank on the left gives the
/// same tree on every rank, and results that are equal bit by bit.
struct Fold {
  const Circle& circle;
  Rank seats;  // a power of two
  Rank extra;

  explicit Fold(const Circle& circle)
      : circle(circle), seats(1 << floor_log2(circle.size)), extra(circle.size - seats) {}

  bool paired() const { return circle.position < 2 * extra; }
  bool seated() const { return !paired() || circle.position % 2 == 1; }
  Rank seat() const { return paired() ? circle.position / 2 : circle.position - extra; }
  /// The first position whose vector the seat has. The last is the one before the next seat's
  /// first.
  Rank first_of(Rank seat) const { return seat < extra ? 2 * seat : seat + extra; }
  Rank rank_at(Rank seat) const { return circle.rank_at(first_of(seat + 1) - 1); }
  Rank partner() const { return circle.rank_at(circle.position ^ 1); }
  /// Adds the round in which pairs move `range` into their seats (`in`), or out of them.
  void add(Schedule& schedule, Range range, bool in, Combine combine) const {
    if (extra == 0) return;
    Step step;
    bool sends = seated() != in;
    if (paired() && sends) step = {partner(), range, kNobody, {}, combine};
    if (paired() && !sends) step = {kNobody, {}, partner(), range, combine};
    add_round(schedule, step);
  }
  /// The messages of all ranks in that round. `share_of` is the share of each pair's message.
  template <typename ShareOf>
  void add(std::vector<Traffic>* rounds, bool in, Combine combine, ShareOf&& share_of) const {
    if (extra == 0) return;
    Traffic& round = rounds->emplace_back();
    for (Rank pair = 0; pair < extra; pair++) {
      Rank from = circle.rank_at(2 * pair), to = circle.rank_at(2 * pair + 1);
      if (!in) std::swap(from, to);
      if (double share = share_of(pair); share > 0)
        round.messages.push_back({from, to, share, combine});
    }
  }
  /// The messages of all seats to the seats at a distance. `share_of` is the share of each seat.
  template <typename ShareOf>
  void add(std::vector<Traffic>* rounds, Rank distance, Combine combine, ShareOf&& share_of) const {
    Traffic& round = rounds->emplace_back();
    round.messages.reserve(static_cast<size_t>(seats));
    for (Rank seat = 0; seat < seats; seat++)
      round.messages.push_back({rank_at(seat), rank_at(seat ^ distance), share_of(seat), combine});
  }
};

/// The chunks of the group that `chunk` is in. Groups have `length` chunks and are aligned.
Range group_of(const Chunks& chunks, Rank chunk, Rank length) {
  Rank first = chunk / length * length;
  return chunks.between(first, first + length);
}

/// The chunk that a seat ends with if halves go to near seats first: the seat's bits, reversed.
Rank chunk_of(Rank seat, Rank seats) {
  Rank chunk = 0;
  for (Rank bit = 1; bit < seats; bit *= 2, seat /= 2) chunk = 2 * chunk + seat % 2;
  return chunk;
}

/// Two seats at `distance` share a range. In a reduce-scatter each keeps one half, and sends the
/// other half to its partner. In an allgather each sends its half back.
Step halving_step(const Fold& fold, const Chunks& chunks, Rank distance, Combine combine) {
  if (!fold.seated()) return {};
  Rank seat = fold.seat(), partner = fold.rank_at(seat ^ distance);
  Rank chunk = chunk_of(seat, fold.seats), length = fold.seats / (2 * distance);
  Range mine = group_of(chunks, chunk, length), theirs = group_of(chunks, chunk ^ length, length);
  if (combine == Combine::kReduce) return {partner, theirs, partner, mine, combine};
  return {partner, mine, partner, theirs, combine};
}

Schedule make_allgather(const Problem& problem) {
  return doubling_allgather(Circle(problem), Chunks(problem.counts));
}

double whole(Rank) { return 1; }

std::vector<Traffic> doubling_traffic(const Problem& problem) {
  Circle circle(problem);
  Fold fold(circle);
  std::vector<Traffic> rounds;
  fold.add(&rounds, true, Combine::kReduce, whole);
  for (Rank distance = 1; distance < fold.seats; distance *= 2)
    fold.add(&rounds, distance, Combine::kReduce, whole);
  fold.add(&rounds, false, Combine::kCopy, whole);
  return rounds;
}

std::vector<Traffic> halving_traffic(const Problem& problem) {
  Circle circle(problem);
  Fold fold(circle);
  auto half_of = [](Rank distance) { return [=](Rank) { return 0.5 / distance; }; };
  std::vector<Traffic> rounds;
  fold.add(&rounds, true, Combine::kReduce, whole);
  for (Rank distance = 1; distance < fold.seats; distance *= 2)
    fold.add(&rounds, distance, Combine::kReduce, half_of(distance));
  for (Rank distance = fold.seats / 2; distance >= 1; distance /= 2)
    fold.add(&rounds, distance, Combine::kCopy, half_of(distance));
  fold.add(&rounds, false, Combine::kCopy, whole);
  return rounds;
}

std::vector<Traffic> allgather_traffic(const Problem& problem) {
  Circle circle(problem);
  Fold fold(circle);
  auto part_of = [&](Rank chunks) { return static_cast<double>(chunks) / circle.size; };
  std::vector<Traffic> rounds;
  fold.add(&rounds, true, Combine::kCopy, [&](Rank) { return part_of(1); });
  for (Rank distance = 1; distance < fold.seats; distance *= 2)
    fold.add(&rounds, distance, Combine::kCopy, [&](Rank seat) {
      Rank first = seat / distance * distance;
      return part_of(fold.first_of(first + distance) - fold.first_of(first));
    });
  fold.add(&rounds, false, Combine::kCopy, [&](Rank pair) { return part_of(2 * pair); });
  fold.add(&rounds, false, Combine::kCopy,
           [&](Rank pair) { return part_of(circle.size - 2 * pair - 1); });
  return rounds;
}

}  // namespace

// steps 2ceil(lg P)-floor(lg P), bytes n ceil(lg P)
Schedule recursive_doubling(const Circle& circle, Range range) {
  Fold fold(circle);
  Schedule schedule;
  fold.add(schedule, range, true, Combine::kReduce);
  for (Rank distance = 1; distance < fold.seats; distance *= 2) {
    Step step;
    if (fold.seated()) {
      Rank partner = fold.rank_at(fold.seat() ^ distance);
      step = {partner, range, partner, range, Combine::kReduce};
    }
    add_round(schedule, step);
  }
  fold.add(schedule, range, false, Combine::kCopy);
  return schedule;
}

// Near partners exchange the large halves, since they are on the same host.
// steps 2ceil(lg P), bytes 2n(1-1/2^floor(lg P)) + n(ceil(lg P)-floor(lg P))
Schedule halving_doubling(const Circle& circle, Range range) {
  Fold fold(circle);
  Chunks chunks = even_chunks(range, fold.seats);
  Schedule schedule;
  fold.add(schedule, range, true, Combine::kReduce);
  for (Rank distance = 1; distance < fold.seats; distance *= 2)
    add_round(schedule, halving_step(fold, chunks, distance, Combine::kReduce));
  for (Rank distance = fold.seats / 2; distance >= 1; distance /= 2)
    add_round(schedule, halving_step(fold, chunks, distance, Combine::kCopy));
  fold.add(schedule, range, false, Combine::kCopy);
  return schedule;
}

// A position without a seat receives the chunks before its own, then those after it, so that no
// rank receives a chunk twice.
// steps at most 3ceil(lg P)-2floor(lg P), bytes n(P-1)/P for powers of two
Schedule doubling_allgather(const Circle& circle, const Chunks& chunks) {
  Fold fold(circle);
  Schedule schedule;
  Rank folded = fold.paired() ? circle.position / 2 * 2 : 0;
  fold.add(schedule, chunks.at(folded), true, Combine::kCopy);
  for (Rank distance = 1; distance < fold.seats; distance *= 2) {
    Step step;
    if (fold.seated()) {
      auto held = [&](Rank seat) {
        Rank first = seat / distance * distance;
        return chunks.between(fold.first_of(first), fold.first_of(first + distance));
      };
      Rank seat = fold.seat(), partner = fold.rank_at(seat ^ distance);
      step = {partner, held(seat), partner, held(seat ^ distance), Combine::kCopy};
    }
    add_round(schedule, step);
  }
  fold.add(schedule, chunks.between(0, folded), false, Combine::kCopy);
  fold.add(schedule, chunks.between(folded + 1, circle.size), false, Combine::kCopy);
  return schedule;
}

ScheduleRow allreduce_recursive_doubling() {
  return {.collective = RC_ALLREDUCE,
          .name = "recursive_doubling",
          .summary = "whole vectors exchanged with partners at distances 1, 2, 4 ...",
          .cost = "steps 2ceil(lg P)-floor(lg P), bytes n ceil(lg P)",
          .make =
              [](const Problem& problem) {
                return recursive_doubling(Circle(problem), {0, problem.counts[0]});
              },
          .traffic = doubling_traffic};
}

ScheduleRow allreduce_halving_doubling() {
  return {.collective = RC_ALLREDUCE,
          .name = "halving_doubling",
          .summary = "reduce-scatter by recursive halving, allgather by recursive doubling",
          .cost = "steps 2ceil(lg P), bytes 2n(1-1/2^floor(lg P)) + n(ceil(lg P)-floor(lg P))",
          .make =
              [](const Problem& problem) {
                return halving_doubling(Circle(problem), {0, problem.counts[0]});
              },
          .traffic = halving_traffic};
}

ScheduleRow allgather_doubling() {
  return {.collective = RC_ALLGATHER,
          .name = "doubling",
          .summary = "each rank exchanges all that it has with partners at distances 1, 2, 4 ...",
          .cost =
              "steps at most 3ceil(lg P)-2floor(lg P), "
              "bytes at most n(P-1)/P+2n(ceil(lg P)-floor(lg P))",
          .make = make_allgather,
          .traffic = allgather_traffic};
}

ScheduleRow reduce_scatter_halving() {
  return {.collective = RC_REDUCE_SCATTER,
          .name = "halving",
          .summary = "each rank halves what it reduces with partners at distances ... 4, 2, 1",
          .cost = "steps at most 3ceil(lg P)-2floor(lg P), bytes n(P-1)/P",
          .make = [](const Problem& problem) { return transposed(make_allgather(problem)); },
          .traffic = [](const Problem& problem) { return transposed(allgather_traffic(problem)); }};
}

}  // namespace ringcoll

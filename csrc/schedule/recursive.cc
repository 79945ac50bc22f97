// Recursive doubling and halving: partners at distances 1, 2, 4 … (or … 4, 2, 1), so that the
// number of rounds grows with the logarithm of the ranks.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// Int. J. High Perform. Comput. Appl. 19 (2005); Rabenseifner, "Optimization of collective
// reduction operations", ICCS 2004.
#include "schedule/families.h"

namespace ringcoll {
namespace {

/// Any number of positions made a power of two: of the first 2 `extra` positions, each even one
/// hands its vector to the odd one after it and gets the result in the end. The order of the seats
/// is that of the positions, so "the lower rank's operand is the left one" is the same tree on
/// every rank, and the results are equal bit by bit.
struct Fold {
  const Circle& circle;
  Rank seats;  // a power of two
  Rank extra;

  explicit Fold(const Circle& circle)
      : circle(circle), seats(1 << floor_log2(circle.size)), extra(circle.size - seats) {}

  bool paired() const { return circle.position < 2 * extra; }
  bool seated() const { return !paired() || circle.position % 2 == 1; }
  Rank seat() const { return paired() ? circle.position / 2 : circle.position - extra; }
  /// The positions whose vectors the seat stands for.
  Rank first_of(Rank seat) const { return seat < extra ? 2 * seat : seat + extra; }
  Rank rank_at(Rank seat) const { return circle.rank_at(first_of(seat + 1) - 1); }
  Rank partner() const { return circle.rank_at(circle.position ^ 1); }
  /// Into the seat, or out of it.
  void add(Schedule& schedule, Range range, bool in, Combine combine) const {
    if (extra == 0) return;
    Step step;
    bool sends = seated() != in;
    if (paired() && sends) step = {partner(), range, kNobody, {}, combine};
    if (paired() && !sends) step = {kNobody, {}, partner(), range, combine};
    add_round(schedule, step);
  }
};

/// The chunks of the aligned group of `length` chunks that `chunk` belongs to.
Range group_of(const Chunks& chunks, Rank chunk, Rank length) {
  Rank first = chunk / length * length;
  return chunks.between(first, first + length);
}

/// The chunk that a seat ends with when halves are handed over to near seats first: its bits, in
/// reverse.
Rank chunk_of(Rank seat, Rank seats) {
  Rank chunk = 0;
  for (Rank bit = 1; bit < seats; bit *= 2, seat /= 2) chunk = 2 * chunk + seat % 2;
  return chunk;
}

/// Of what seats at `distance` both still care for, each keeps one half and hands the other over;
/// in an allgather, on the way back, each is sent the half that it handed over.
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

// Near partners exchange the large halves: they are those of the same host.
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

// Who is folded away is sent the chunks before its own, then those after it, so that nobody
// receives anything twice. steps 3ceil(lg P)-2floor(lg P), bytes n(P-1)/P for powers of two
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
          .make = [](const Problem& problem) {
            return recursive_doubling(Circle(problem), {0, problem.counts[0]});
          }};
}

ScheduleRow allreduce_halving_doubling() {
  return {.collective = RC_ALLREDUCE,
          .name = "halving_doubling",
          .summary = "reduce-scatter by recursive halving, allgather by recursive doubling",
          .cost = "steps 2ceil(lg P), bytes 2n(1-1/2^floor(lg P)) + n(ceil(lg P)-floor(lg P))",
          .make = [](const Problem& problem) {
            return halving_doubling(Circle(problem), {0, problem.counts[0]});
          }};
}

ScheduleRow allgather_doubling() {
  return {.collective = RC_ALLGATHER,
          .name = "doubling",
          .summary = "what each has is exchanged with partners at distances 1, 2, 4 ...",
          .cost =
              "steps at most 3ceil(lg P)-2floor(lg P), "
              "bytes at most n(P-1)/P+2n(ceil(lg P)-floor(lg P))",
          .make = make_allgather};
}

ScheduleRow reduce_scatter_halving() {
  return {.collective = RC_REDUCE_SCATTER,
          .name = "halving",
          .summary = "what each still cares for is halved with partners at distances ... 4, 2, 1",
          .cost = "steps at most 3ceil(lg P)-2floor(lg P), bytes n(P-1)/P",
          .make = [](const Problem& problem) { return transposed(make_allgather(problem)); }};
}

}  // namespace ringcoll

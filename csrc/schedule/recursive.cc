// Recursive doubling and halving: partners at distances 1, 2, 4 … (or … 4, 2, 1), so that the
// number of rounds grows with the logarithm of the ranks.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// Int. J. High Perform. Comput. Appl. 19 (2005); Rabenseifner, "Optimization of collective
// reduction operations", ICCS 2004.
#include "schedule/families.h"

namespace ringcoll {
namespace {

/// Any number of ranks made a power of two: of the first 2 `extra` ranks, each even one hands its
/// vector to the odd one after it and gets the result in the end. The order of the seats is that of
/// the ranks, so "the lower rank's operand is the left one" is the same tree on every rank, and the
/// results are equal bit by bit.
struct Fold {
  Rank rank;
  Rank seats;  // a power of two
  Rank extra;

  explicit Fold(const Problem& problem)
      : rank(problem.rank), seats(1 << floor_log2(problem.size)), extra(problem.size - seats) {}

  bool paired() const { return rank < 2 * extra; }
  bool seated() const { return !paired() || rank % 2 == 1; }
  Rank seat() const { return paired() ? rank / 2 : rank - extra; }
  Rank rank_at(Rank seat) const { return seat < extra ? 2 * seat + 1 : seat + extra; }
};

/// The first round of the fold: in to the seat; the last one: out of it. None for a power of two.
void add_fold(Schedule& schedule, const Fold& fold, Range all, bool in) {
  if (fold.extra == 0) return;
  Step step;
  bool sends = fold.seated() != in;
  Combine combine = in ? Combine::kReduce : Combine::kCopy;
  Rank partner = fold.rank ^ 1;
  if (fold.paired() && sends) step = {partner, all, kNobody, {}, combine};
  if (fold.paired() && !sends) step = {kNobody, {}, partner, all, combine};
  add_round(schedule, step);
}

// steps 2ceil(lg P)-floor(lg P), bytes n ceil(lg P)
Schedule make_recursive_doubling(const Problem& problem) {
  Fold fold(problem);
  Range all = {0, problem.counts[0]};
  Schedule schedule;
  add_fold(schedule, fold, all, true);
  for (Rank distance = 1; distance < fold.seats; distance *= 2) {
    Step step;
    if (fold.seated()) {
      Rank partner = fold.rank_at(fold.seat() ^ distance);
      step = {partner, all, partner, all, Combine::kReduce};
    }
    add_round(schedule, step);
  }
  add_fold(schedule, fold, all, false);
  return schedule;
}

/// The chunks of the aligned group of `length` seats that `seat` belongs to.
Range group_of(const Chunks& chunks, Rank seat, Rank length) {
  Rank first = seat / length * length;
  return chunks.between(first, first + length);
}

/// Of a group of 2 `distance` seats each half keeps its chunks and hands the others' over.
Step halving_step(const Fold& fold, const Chunks& chunks, Rank distance) {
  if (!fold.seated()) return {};
  Rank seat = fold.seat(), partner = fold.rank_at(seat ^ distance);
  return {partner, group_of(chunks, seat ^ distance, distance), partner,
          group_of(chunks, seat, distance), Combine::kReduce};
}
Step doubling_step(const Fold& fold, const Chunks& chunks, Rank distance) {
  if (!fold.seated()) return {};
  Rank seat = fold.seat(), partner = fold.rank_at(seat ^ distance);
  return {partner, group_of(chunks, seat, distance), partner,
          group_of(chunks, seat ^ distance, distance), Combine::kCopy};
}

// steps 2ceil(lg P), bytes 2n(1-1/2^floor(lg P)) + n(ceil(lg P)-floor(lg P))
Schedule make_halving_doubling(const Problem& problem) {
  Fold fold(problem);
  Range all = {0, problem.counts[0]};
  Chunks chunks(even_counts(problem.counts[0], fold.seats));
  Schedule schedule;
  add_fold(schedule, fold, all, true);
  for (Rank distance = fold.seats / 2; distance >= 1; distance /= 2)
    add_round(schedule, halving_step(fold, chunks, distance));
  for (Rank distance = 1; distance < fold.seats; distance *= 2)
    add_round(schedule, doubling_step(fold, chunks, distance));
  add_fold(schedule, fold, all, false);
  return schedule;
}

/// Nobody pays more than the rank in seat 0: the fold's message is its, and its chunks are the
/// largest.
template <Schedule (*make)(const Problem&)>
Cost price_seat_0(const Problem& problem) {
  Problem payer = problem;
  payer.rank = Fold(problem).rank_at(0);
  return cost_of(make(payer), payer.rank);
}

}  // namespace

ScheduleRow allreduce_recursive_doubling() {
  return {.collective = RC_ALLREDUCE,
          .name = "recursive_doubling",
          .summary = "whole vectors exchanged with partners at distances 1, 2, 4 ...",
          .cost = "steps 2ceil(lg P)-floor(lg P), bytes n ceil(lg P)",
          .make = make_recursive_doubling,
          .price = price_seat_0<make_recursive_doubling>};
}

ScheduleRow allreduce_halving_doubling() {
  return {.collective = RC_ALLREDUCE,
          .name = "halving_doubling",
          .summary = "reduce-scatter by recursive halving, allgather by recursive doubling",
          .cost = "steps 2ceil(lg P), bytes 2n(1-1/2^floor(lg P)) + n(ceil(lg P)-floor(lg P))",
          .make = make_halving_doubling,
          .price = price_seat_0<make_halving_doubling>};
}

}  // namespace ringcoll

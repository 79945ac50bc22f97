// Alltoall over hosts with few messages between hosts. First the ranks of a host exchange blocks
// among themselves. Each then has, for every other host, all blocks for one rank of that host: it
// is their carrier. Then carriers send these blocks as one message each.
//
// Forwarded blocks need no memory of their own. The blocks that rank j of a host sends to ranks
// 0, 1, 2, … of another host g form a row. Rank i carries the blocks for rank i of g. So j gives i
// its block i of that row, and receives block j of i's row into the same place. Then the row of i
// has what ranks 0, 1, 2, … of its host send to rank i of g, in the order in which it is received.
// This is the transposition of a square of blocks. If g has more ranks than the own host, there are
// as many squares as fit, and the remaining blocks go directly.
//
// Source: see schedule/lanes.h; Traff and Rougier, "MPI collectives and datatypes for hierarchical
// all-to-all communication", EuroMPI 2014.
#include <algorithm>
#include <utility>
#include <vector>

#include "schedule/families.h"
#include "schedule/lanes.h"

namespace ringcoll {
namespace {

struct Exchange : HostView {
  Chunks out, in;
  Rank ranks, local;  // of this host, and the index of this rank among them

  explicit Exchange(const Problem& problem)
      : HostView(problem),
        out(problem.counts),
        in(problem.recv_counts),
        ranks(hosts().size_of(host)),
        local(rank - hosts().first(host)) {}

  Range received(Rank first, Rank end) const {
    Range range = in.between(first, end);
    return {out.total() + range.first, range.count};
  }
  /// The number of squares that one host sends to another.
  Rank squares(Rank from, Rank to) const { return hosts().size_of(to) / hosts().size_of(from); }
  /// The number of rounds in which one host sends to another: one for each square, then the rest.
  Rank rounds_between(Rank from, Rank to) const {
    bool even = hosts().size_of(to) % hosts().size_of(from) == 0;
    return squares(from, to) + (even ? 0 : hosts().size_of(from));
  }
};

/// Transposes the squares within the host. In round t, ranks i and j with i + j = t (modulo the
/// ranks of the host) swap blocks, one for each square.
Schedule transpose(const Exchange& e) {
  Schedule schedule;
  for (Rank t = 0; t < e.ranks; t++) {
    Rank other = (t - e.local + e.ranks) % e.ranks;
    for (Rank host = 0; host < e.hosts().count(); host++)
      for (Rank square = 0; host != e.host && square < e.squares(e.host, host); square++) {
        Step step;
        if (other != e.local) {
          Range block = e.out.at(e.hosts().first(host) + square * e.ranks + other);
          Rank peer = e.hosts().first(e.host) + other;
          step = {peer, block, peer, block, Combine::kCopy};
        }
        add_round(schedule, step);
      }
  }
  return schedule;
}

/// The rounds of transpose() on a host.
size_t rounds_within(const Exchange& e, Rank host) {
  Rank squares = 0;
  for (Rank other = 0; other < e.hosts().count(); other++)
    if (other != host) squares += e.squares(host, other);
  return static_cast<size_t>(squares) * e.hosts().size_of(host);
}

/// Exchanges the blocks for ranks of this host.
Schedule exchange_within(const Exchange& e) {
  Schedule schedule;
  Rank first = e.hosts().first(e.host);
  for (Rank i = 0; i < e.ranks; i++) {
    Rank to = first + (e.local + i) % e.ranks, from = first + (e.local - i + e.ranks) % e.ranks;
    add_round(schedule, {to, e.out.at(to), from, e.received(from, from + 1), Combine::kCopy});
  }
  return schedule;
}

/// Adds what this rank sends to `host` in a round.
void add_sent(const Exchange& e, Rank host, Rank round, Step* step) {
  Rank squares = e.squares(e.host, host), first = e.hosts().first(host);
  if (round >= e.rounds_between(e.host, host)) return;
  if (round < squares) {
    Rank row = first + round * e.ranks;
    step->send_to = row + e.local;
    step->send = e.out.between(row, row + e.ranks);
    return;
  }
  Rank rest = squares * e.ranks + (e.local + round - squares) % e.ranks;
  if (rest >= e.hosts().size_of(host)) return;
  step->send_to = first + rest;
  step->send = e.out.at(first + rest);
}

/// Adds what this rank receives from `host` in a round. It mirrors add_sent().
void add_received(const Exchange& e, Rank host, Rank round, Step* step) {
  Rank theirs = e.hosts().size_of(host), first = e.hosts().first(host);
  Rank squares = e.squares(host, e.host);
  if (round >= e.rounds_between(host, e.host)) return;
  if (round < squares) {
    if (e.local / theirs != round) return;
    step->recv_from = first + e.local % theirs;
    step->recv = e.received(first, first + theirs);
    return;
  }
  Rank rest = e.local - squares * theirs;
  if (rest < 0) return;
  Rank from = ((rest - (round - squares)) % theirs + theirs) % theirs;
  step->recv_from = first + from;
  step->recv = e.received(first + from, first + from + 1);
}

/// Host h sends to hosts h + 1, h + 2, … in turn, and receives from hosts h - 1, h - 2, …
Schedule exchange_between(const Exchange& e) {
  Schedule schedule;
  Rank hosts = e.hosts().count();
  for (Rank distance = 1; distance < hosts; distance++) {
    Rank rounds = 0;
    for (Rank host = 0; host < hosts; host++)
      rounds = std::max(rounds, e.rounds_between(host, (host + distance) % hosts));
    for (Rank round = 0; round < rounds; round++) {
      Step step;
      add_sent(e, (e.host + distance) % hosts, round, &step);
      add_received(e, (e.host - distance + hosts) % hosts, round, &step);
      add_round(schedule, step);
    }
  }
  return schedule;
}

Schedule make(const Problem& problem) {
  Exchange e(problem);
  size_t within = 0;
  for (Rank host = 0; host < e.hosts().count(); host++)
    within = std::max(within, rounds_within(e, host));
  Schedule schedule = transpose(e);
  pad(schedule, within);
  schedule = compose(std::move(schedule), exchange_between(e));
  Schedule near = exchange_within(e);
  pad(near, e.largest);
  return compose(std::move(schedule), near);
}

/// Empty if hosts have different numbers of ranks.
std::vector<Traffic> traffic(const Problem& problem) {
  HostView view(problem);
  if (!view.hosts_are_equal()) return {};
  Rank hosts = view.hosts().count(), ranks = view.largest;
  double block = 1.0 / problem.size;
  std::vector<Traffic> phases = traffic_by_distance(problem, ranks, block * ranks);
  if (phases.empty()) return {};
  for (Rank t = 0; t < ranks; t++) {
    Traffic swaps{.messages = {}, .times = hosts - 1};
    for (Rank rank = 0; rank < problem.size; rank++) {
      Rank own = rank % ranks, other = (t - own + ranks) % ranks;
      if (other != own) swaps.messages.push_back({rank, rank - own + other, block});
    }
    phases.push_back(std::move(swaps));
  }
  Traffic near{.messages = {}, .times = ranks - 1};
  for (Rank host = 0; host < hosts; host++)
    add_ring(near, view.circle_of(host), block, Combine::kCopy);
  phases.push_back(std::move(near));
  return phases;
}

}  // namespace

ScheduleRow alltoall_direct_direct() {
  return {.collective = RC_ALLTOALL,
          .name = "direct/direct",
          .summary = "each host collects what it sends to a rank of another host into one message",
          .cost = "steps P-1, bytes n(R-1)/R+n(H-1)/H",
          .make = make,
          .traffic = traffic,
          .where = Where::kHosts,
          .equal_counts = true};
}

}  // namespace ringcoll

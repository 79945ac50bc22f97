#include "coll/select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

// A piece should stay in the caches of the two cores that work on it; where ranks share cores, it
// should be large against a change of context.
constexpr int64_t kDomainPieceBytes = 256 << 10;
constexpr int64_t kOversubscribedPieceBytes = 2 << 20;
// Between hosts the price decides, from these on: smaller pieces are not worth their system calls.
constexpr int64_t kLeastNetworkPieceBytes = 128 << 10;
constexpr int64_t kMostNetworkPieceBytes = 4 << 20;
constexpr int64_t kCacheLine = 64;
// Schedules of all ranks together that are walked to price a row: a tenth of a second.
constexpr int64_t kMostStepsWalked = 1 << 20;
// Calls of this size should be in flight in the best number of pieces.
constexpr double kLargeBytes = 64 << 20;
constexpr int64_t kBankAlignment = 4096;

// The schedule that RINGCOLL_ALGORITHM names for a collective, if it names one.
std::optional<std::string> named(const std::string& algorithm, Collective collective) {
  std::optional<std::string> found;
  size_t at = 0;
  while (at < algorithm.size()) {
    size_t end = std::min(algorithm.find(',', at), algorithm.size());
    std::string item = algorithm.substr(at, end - at);
    size_t equals = item.find('=');
    if (equals == std::string::npos)
      found = item;
    else if (item.substr(0, equals) == name_of(collective))
      return item.substr(equals + 1);
    at = end + 1;
  }
  return found;
}

std::string names_of(std::optional<Collective> collective) {
  std::set<std::string> names;
  for (const ScheduleRow& row : schedules())
    if (!collective || row.collective == *collective) names.emplace(row.name);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::optional<Collective> collective_named(std::string_view name) {
  for (int i = 0; i < RC_COLLECTIVE_COUNT; i++)
    if (name == name_of(static_cast<Collective>(i))) return static_cast<Collective>(i);
  return {};
}

bool serves(const ScheduleRow& row, const Call& call) {
  return row.collective == call.collective && (!row.equal_counts || call.has_equal_counts());
}

/// Bytes of a piece to try.
std::vector<int64_t> piece_sizes(const Terrain& terrain) {
  int64_t most = terrain.largest_piece_bytes;
  if (terrain.segment_bytes > 0) return {std::min(terrain.segment_bytes, most)};
  if (terrain.one_domain)
    return {std::min(terrain.oversubscribed ? kOversubscribedPieceBytes : kDomainPieceBytes, most)};
  std::vector<int64_t> sizes;
  for (int64_t bytes = kMostNetworkPieceBytes; bytes >= kLeastNetworkPieceBytes; bytes /= 2)
    if (bytes <= most) sizes.push_back(bytes);
  if (sizes.empty()) sizes.push_back(most);
  return sizes;
}

}  // namespace

void check_algorithm(const std::string& algorithm) {
  size_t at = 0;
  while (at < algorithm.size()) {
    size_t end = std::min(algorithm.find(',', at), algorithm.size());
    std::string item = algorithm.substr(at, end - at);
    size_t equals = item.find('=');
    std::optional<Collective> collective;
    if (equals != std::string::npos) {
      collective = collective_named(item.substr(0, equals));
      check(collective.has_value(), Code::kInvalidArgument,
            "RINGCOLL_ALGORITHM=\"{}\": \"{}\" is no collective", algorithm,
            item.substr(0, equals));
      item = item.substr(equals + 1);
    }
    bool exists = std::ranges::any_of(schedules(), [&](const ScheduleRow& row) {
      return row.name == item && (!collective || row.collective == *collective);
    });
    check(exists, Code::kInvalidArgument,
          "RINGCOLL_ALGORITHM=\"{}\": there is no \"{}\"; there is: {}", algorithm, item,
          names_of(collective));
    at = end + 1;
  }
}

const Profile* Selector::profile_of(const ScheduleRow& row) {
  auto [it, fresh] = profiles_.try_emplace(&row);
  if (fresh && is_offered(row, terrain_.fabric, terrain_.one_domain)) {
    Problem problem{.size = terrain_.fabric.ranks(), .levels = terrain_.fabric.groups};
    std::vector<Traffic> traffic;
    if (row.traffic) traffic = row.traffic(problem);
    if (traffic.empty()) traffic = traffic_of(row, problem, kMostStepsWalked);
    if (!traffic.empty() || problem.size == 1)
      it->second = ringcoll::profile_of(traffic, terrain_.fabric);
  }
  return it->second ? &*it->second : nullptr;
}

std::optional<Selector::Estimate> Selector::estimate(const ScheduleRow& row, double bytes) {
  const Profile* profile = profile_of(row);
  if (!profile) return {};
  std::optional<Estimate> best;
  for (int64_t piece : piece_sizes(terrain_)) {
    auto pieces = static_cast<int64_t>(std::ceil(bytes / static_cast<double>(piece)));
    double us = microseconds(*profile, bytes, std::max<int64_t>(1, pieces), terrain_.slots);
    if (!best || us < best->microseconds) best = {us, piece};
  }
  return best;
}

const ScheduleRow* Selector::cheapest(const Call& call, double bytes, int64_t* piece_bytes) {
  const ScheduleRow* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const ScheduleRow& row : schedules()) {
    if (!serves(row, call)) continue;
    auto price = estimate(row, bytes);
    // Of rows that nobody can price the first is taken, if there is no other.
    if (!best && !price && row.where == Where::kAnywhere) best = &row;
    if (price && price->microseconds < least) {
      least = price->microseconds;
      *piece_bytes = price->piece_bytes;
      best = &row;
    }
  }
  invariant(best, "no schedule for {}", name_of(call.collective));
  return best;
}

// The price is that of a vector, or of chunks that are as long as the longest. What an alltoall
// with counts sends differs from rank to rank: it may not matter there.
Choice Selector::choose(const Call& call, int64_t longest_lane, size_t lanes) {
  auto element = static_cast<int64_t>(size_of(call.dtype));
  auto sharing = static_cast<int64_t>(call.collective == RC_ALLTOALL ? lanes / 2 : lanes);
  sharing = std::max<int64_t>(1, sharing);
  bool known = call.collective != RC_ALLTOALL || call.has_equal_counts();
  int64_t priced = known ? longest_lane * element : kLeastNetworkPieceBytes;
  double bytes = static_cast<double>(priced) * static_cast<double>(sharing);
  int64_t piece_bytes = piece_sizes(terrain_).front();
  Choice choice;
  if (auto name = named(terrain_.algorithm, call.collective))
    choice.row = find_schedule(call.collective, *name);
  if (!choice.row || !serves(*choice.row, call))
    choice.row = cheapest(call, bytes, &piece_bytes);
  else if (auto price = estimate(*choice.row, bytes))
    piece_bytes = price->piece_bytes;
  if (call.collective == RC_BARRIER) {
    choice.pieces = 1;
    return choice;
  }
  if (longest_lane == 0) return choice;
  int64_t most = std::max<int64_t>(1, piece_bytes / (element * sharing));
  choice.pieces = (longest_lane + most - 1) / most;
  // Pieces of equal length, in whole cache lines. Chunked collectives have lanes of different
  // lengths on different ranks (alltoall), so that there the stretch may not depend on them.
  choice.stretch = most;
  if (call.is_vector()) {
    int64_t line = std::max<int64_t>(1, kCacheLine / element);
    choice.stretch = (longest_lane + choice.pieces - 1) / choice.pieces;
    choice.stretch = std::min(most, (choice.stretch + line - 1) / line * line);
    choice.pieces = (longest_lane + choice.stretch - 1) / choice.stretch;
  }
  return choice;
}

int64_t largest_piece_bytes(int64_t arena_bytes, int64_t slots) {
  return arena_bytes / slots / 2 / kBankAlignment * kBankAlignment / 2;
}

int64_t best_slots(Terrain terrain, int64_t arena_bytes) {
  constexpr int64_t kFewest = 4;
  int64_t best = kFewest;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t slots = kFewest; slots <= 16 && !terrain.one_domain; slots *= 2) {
    terrain.slots = slots;
    terrain.largest_piece_bytes = largest_piece_bytes(arena_bytes, slots);
    if (terrain.largest_piece_bytes < kLeastNetworkPieceBytes) break;
    Selector selector(terrain);
    for (const ScheduleRow& row : schedules()) {
      if (row.collective != RC_ALLREDUCE) continue;
      auto price = selector.estimate(row, kLargeBytes);
      // More slots are more memory: worth it from two percent on.
      if (price && price->microseconds < least * 0.98) {
        least = price->microseconds;
        best = slots;
      }
    }
  }
  return best;
}

}  // namespace ringcoll

#include "coll/select.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"

namespace ringcoll {
namespace {

// Price of a message: a fixed part and a part for each byte; and of combining. Orders of magnitude,
// fitted by hand to whole calls (perf/results has those of shared memory; the runs for kNetwork and
// for combining are not kept); a choice is wrong only near the point where two schedules cost the
// same.
struct LinkPrice {
  double message_us;
  double bytes_per_us;
};
constexpr double kCombinedBytesPerUs = 10000;
constexpr LinkPrice kDomain{0.3, 8000};
constexpr LinkPrice kDomainOversubscribed{8, 4000};  // a message is a change of context
constexpr LinkPrice kNetwork{25, 1500};

// A piece should stay in the caches of the two cores that work on it, and be large against the
// price of its messages.
constexpr int64_t kDomainPieceBytes = 256 << 10;
constexpr int64_t kOversubscribedPieceBytes = 2 << 20;
constexpr int64_t kNetworkPieceBytes = 1 << 20;
constexpr int64_t kCacheLine = 64;

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

LinkPrice price_of(const Terrain& terrain) {
  if (!terrain.one_domain) return kNetwork;
  return terrain.oversubscribed ? kDomainOversubscribed : kDomain;
}

double microseconds(const ScheduleRow& row, const Call& call, const Terrain& terrain,
                    std::span<const int64_t> counts) {
  Problem problem;
  problem.size = terrain.size;
  problem.counts = counts;
  problem.recv_counts = counts;
  LinkPrice link = price_of(terrain);
  double worst = 0;
  // Ranks differ in price only by their place in a tree; the ends of the range show the most
  // expensive one.
  for (Rank rank : {Rank{0}, static_cast<Rank>(terrain.size - 1)}) {
    problem.rank = rank;
    Cost cost = row.price(problem);
    auto element = static_cast<double>(size_of(call.dtype));
    worst =
        std::max(worst, cost.steps * link.message_us + cost.elements * element / link.bytes_per_us +
                            cost.combined * element / kCombinedBytesPerUs);
  }
  return worst;
}

const ScheduleRow* cheapest(const Call& call, const Terrain& terrain, int64_t longest_lane) {
  // Only the choice of vectors depends on the size; the chunks of a chunked collective are priced
  // as equal. What alltoall sends differs from rank to rank: it may not matter there.
  if (call.collective == RC_ALLTOALL) longest_lane = 1;
  std::vector<int64_t> counts(call.is_vector() ? 1 : terrain.size, longest_lane);
  const ScheduleRow* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const ScheduleRow& row : schedules()) {
    if (row.collective != call.collective || (row.domain_only && !terrain.one_domain)) continue;
    double price = microseconds(row, call, terrain, counts);
    if (price < least) least = price, best = &row;
  }
  invariant(best, "no schedule for {}", name_of(call.collective));
  return best;
}

int64_t piece_bytes(const Terrain& terrain) {
  int64_t bytes = terrain.segment_bytes;
  if (bytes == 0)
    bytes = !terrain.one_domain      ? kNetworkPieceBytes
            : terrain.oversubscribed ? kOversubscribedPieceBytes
                                     : kDomainPieceBytes;
  return std::min(bytes, terrain.largest_piece_bytes);
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

Choice choose(const Call& call, const Terrain& terrain, int64_t longest_lane, size_t lanes) {
  Choice choice;
  if (auto name = named(terrain.algorithm, call.collective))
    choice.row = find_schedule(call.collective, *name);
  if (!choice.row) choice.row = cheapest(call, terrain, longest_lane);
  if (call.collective == RC_BARRIER) {
    choice.pieces = 1;
    return choice;
  }
  if (longest_lane == 0) return choice;
  auto element = static_cast<int64_t>(size_of(call.dtype));
  auto sharing = static_cast<int64_t>(call.collective == RC_ALLTOALL ? lanes / 2 : lanes);
  int64_t most =
      std::max<int64_t>(1, piece_bytes(terrain) / (element * std::max<int64_t>(1, sharing)));
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

}  // namespace ringcoll

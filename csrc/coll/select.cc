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

// Sizes of a piece where all ranks share memory. A piece should stay in the caches of the cores
// that work on it. A reduction should fit into half of a core's own cache. Where ranks share cores,
// the next rank on a core finds the piece in its cache. But a rank's part of it should be large
// against a context switch.
constexpr int64_t kDomainPieceBytes = 256 << 10, kMostDomainPieceBytes = 1 << 20;
constexpr int64_t kCopiedPieceBytes = 512 << 10;
constexpr int64_t kCombinedBytesOfSharedCore = 64 << 10, kCopiedBytesOfSharedCore = 128 << 10;
// Between hosts the price decides, within these limits. Smaller pieces are not worth their system
// calls.
constexpr int64_t kLeastNetworkPieceBytes = 128 << 10;
constexpr int64_t kMostNetworkPieceBytes = 4 << 20;
constexpr int64_t kCacheLine = 64;
// The most steps, of all ranks together, that are walked to price a row. This many take 0.1 s.
constexpr int64_t kMostStepsWalked = 1 << 20;
// The same for early sends where ranks share cores, which then wait less often. It is enough for
// some tens of ranks.
constexpr int64_t kMostStepsOfOneDomain = 1 << 14;
// The number of slots is best for calls of this size.
constexpr double kLargeBytes = 64 << 20;
constexpr int64_t kBankAlignment = 4096;
constexpr int64_t kLargestElement = 8;

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

}  // namespace

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

Selector::Selector(Terrain terrain) : terrain_(std::move(terrain)) {
  set_slots(terrain_.slots > 0 ? terrain_.slots : best_slots());
  // An alltoall has most strips: one to each rank, and one from each.
  int64_t most_strips = 2 * terrain_.fabric.ranks();
  check(kLargestElement * most_strips <= bank_bytes(), Code::kInvalidArgument,
        "an element for each of {} ranks does not fit into a piece: raise RINGCOLL_ARENA_BYTES={} "
        "or lower RINGCOLL_SLOTS={}",
        terrain_.fabric.ranks(), terrain_.arena_bytes, slots_);
}

void Selector::set_slots(int64_t slots) {
  slots_ = slots;
  largest_piece_bytes_ = terrain_.arena_bytes / slots / 2 / kBankAlignment * kBankAlignment / 2;
}

// The number of pieces in flight with which large calls are fastest. More pieces hide more latency,
// but are smaller.
int64_t Selector::best_slots() {
  constexpr int64_t kFewest = 4, kMost = 16;
  // More slots use more memory at a time, so they must gain two percent.
  constexpr double kWorthIt = 0.98;
  Call large;
  large.collective = RC_ALLREDUCE;
  int64_t best = kFewest;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t slots = kFewest; slots <= kMost && !terrain_.one_domain; slots *= 2) {
    set_slots(slots);
    if (largest_piece_bytes_ < kLeastNetworkPieceBytes) break;
    int64_t piece_bytes = 0;
    auto price = estimate(*row_for(large, kLargeBytes, &piece_bytes), kLargeBytes);
    if (price && price->microseconds < least * kWorthIt) {
      least = price->microseconds;
      best = slots;
    }
  }
  return best;
}

// True if pieces are cut so that links copy every message: for two ranks with a core each.
bool Selector::copies_all(Collective collective) const {
  return terrain_.one_domain_of_own_cores() && terrain_.fabric.ranks() == 2 &&
         terrain_.copied_bytes > 0 && !traits_of(collective).has_root;
}

int64_t Selector::domain_piece_bytes(Collective collective, const Profile* profile) const {
  if (copies_all(collective) && profile && profile->longest_message > 0) {
    auto most = static_cast<double>(terrain_.copied_bytes);
    return static_cast<int64_t>(most / profile->longest_message);
  }
  if (traits_of(collective).reduces()) {
    int64_t combined = terrain_.fabric.crowded
                           ? kCombinedBytesOfSharedCore * terrain_.fabric.ranks()
                           : terrain_.core_cache_bytes / 2;
    return std::clamp(combined, kDomainPieceBytes, kMostDomainPieceBytes);
  }
  int64_t shared = kCopiedBytesOfSharedCore * terrain_.fabric.ranks();
  return terrain_.fabric.crowded ? std::max(kCopiedPieceBytes, shared) : kCopiedPieceBytes;
}

// The piece sizes to try, in bytes, for a row with this profile. Null: the profile is not known.
std::vector<int64_t> Selector::piece_sizes(Collective collective, const Profile* profile) const {
  int64_t most = largest_piece_bytes_;
  if (terrain_.segment_bytes > 0) return {std::min(terrain_.segment_bytes, most)};
  if (terrain_.one_domain) {
    return {std::min(domain_piece_bytes(collective, profile), most)};
  }
  std::vector<int64_t> sizes;
  for (int64_t bytes = kMostNetworkPieceBytes; bytes >= kLeastNetworkPieceBytes; bytes /= 2)
    if (bytes <= most) sizes.push_back(bytes);
  if (sizes.empty()) sizes.push_back(most);
  return sizes;
}

const Selector::Price* Selector::price_of(const ScheduleRow& row) {
  auto [it, fresh] = prices_.try_emplace(&row);
  if (fresh && is_offered(row, terrain_.fabric, terrain_.one_domain)) it->second = work_out(row);
  return it->second ? &*it->second : nullptr;
}

std::optional<Selector::Price> Selector::work_out(const ScheduleRow& row) const {
  Problem problem{.size = terrain_.fabric.ranks(),
                  .levels = terrain_.fabric.levels(),
                  .positions = terrain_.positions};
  const bool needs_one_domain = row.where == Where::kOneDomain;
  std::vector<Traffic> traffic, early;
  if (row.traffic && !needs_one_domain) traffic = row.traffic(problem);
  if (traffic.empty()) traffic = traffic_of(row, problem, kMostStepsWalked, needs_one_domain);
  if (traffic.empty() && problem.size > 1) return {};
  Price price{.alone = profile_of(traffic, terrain_.fabric), .several = {}};
  price.several = price.alone;
  if (terrain_.one_domain && terrain_.fabric.crowded)
    early = traffic_of(row, problem, kMostStepsOfOneDomain, true);
  if (!early.empty()) price.alone = profile_of(early, terrain_.fabric);
  return price;
}

std::optional<Selector::Estimate> Selector::estimate(const ScheduleRow& row, double bytes) {
  const Price* price = price_of(row);
  if (!price) return {};
  std::optional<Estimate> best;
  for (int64_t piece : piece_sizes(row.collective, &price->several)) {
    auto pieces = static_cast<int64_t>(std::ceil(bytes / static_cast<double>(piece)));
    const Profile& profile = pieces > 1 ? price->several : price->alone;
    double us =
        microseconds(profile, bytes, std::max<int64_t>(1, pieces), pieces_in_flight(slots_));
    if (!best || us < best->microseconds) best = {us, piece};
  }
  return best;
}

const ScheduleRow* Selector::cheapest(const Call& call, double bytes, int64_t* piece_bytes) {
  const ScheduleRow* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const ScheduleRow& row : schedules()) {
    if (row.by_name_only || !serves(row, call)) continue;
    auto price = estimate(row, bytes);
    // Rows with too many steps have no price (kMostStepsWalked). If no row has one, the first is
    // taken.
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

// The row that RINGCOLL_ALGORITHM names if it serves the call, else the cheapest.
const ScheduleRow* Selector::row_for(const Call& call, double bytes, int64_t* piece_bytes) {
  auto name = named(terrain_.algorithm, call.collective);
  const ScheduleRow* row = name ? find_schedule(call.collective, *name) : nullptr;
  if (!row || !serves(*row, call)) return cheapest(call, bytes, piece_bytes);
  if (auto price = estimate(*row, bytes)) *piece_bytes = price->piece_bytes;
  return row;
}

// The price is for a vector, or for chunks that are all as long as the longest. The counts of an
// alltoall differ between ranks, so they may not influence the choice.
Choice Selector::choose(const Call& call, int64_t longest_strip, size_t strips) {
  auto element = static_cast<int64_t>(size_of(call.dtype));
  auto sharing = static_cast<int64_t>(call.exchanges() ? strips / 2 : strips);
  sharing = std::max<int64_t>(1, sharing);
  bool known = !call.exchanges() || call.has_equal_counts();
  int64_t priced = known ? longest_strip * element : kLeastNetworkPieceBytes;
  double bytes = static_cast<double>(priced) * static_cast<double>(sharing);
  int64_t piece_bytes = piece_sizes(call.collective, nullptr).front();
  Choice choice;
  choice.row = row_for(call, bytes, &piece_bytes);
  if (!call.has_data()) {
    choice.pieces = 1;
    return choice;
  }
  if (longest_strip == 0) return choice;
  int64_t most = std::max<int64_t>(1, piece_bytes / (element * sharing));
  choice.pieces = (longest_strip + most - 1) / most;
  // The pieces of a vector have equal lengths, in whole cache lines. The strips of an alltoall
  // differ between ranks, so the stretch of a chunked collective does not depend on the strips.
  choice.stretch = most;
  if (call.is_vector()) {
    int64_t line = std::max<int64_t>(1, kCacheLine / element);
    choice.stretch = (longest_strip + choice.pieces - 1) / choice.pieces;
    choice.stretch = std::min(most, (choice.stretch + line - 1) / line * line);
    choice.pieces = (longest_strip + choice.stretch - 1) / choice.stretch;
  }
  return choice;
}

}  // namespace ringcoll

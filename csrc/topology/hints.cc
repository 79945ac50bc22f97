#include "topology/hints.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "topology/hostlist.h"
#include "topology/location.h"

namespace ringcoll {
namespace {

constexpr size_t kMaxFieldBytes = 4 << 10;
// How many hosts of a file an error lists.
constexpr size_t kMostNamed = 8;

// FNV-1a: it needs no library, and is enough to notice files that differ by accident.
uint64_t digest_of(std::string_view text) {
  uint64_t digest = 0xcbf29ce484222325;
  for (char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return std::max<uint64_t>(digest, 1);
}

// Ranks that can read a file must have the same one. A rank that cannot read it uses rank 0's.
void check_files(const std::vector<Location>& locations) {
  const Hints& first = locations[0].hints;
  check(first.file.empty() || first.digest, Code::kInvalidArgument,
        "RINGCOLL_TOPOLOGY={} cannot be read by {}, which reads it for all: {}", first.file,
        describe(0, locations[0]), first.failure);
  for (Rank r = 1; r < static_cast<Rank>(locations.size()); r++) {
    const Hints& hints = locations[r].hints;
    if (hints.file.empty()) continue;  // the checks below would format many texts
    check(!first.file.empty(), Code::kInvalidArgument,
          "RINGCOLL_TOPOLOGY={} is set on {} but not on {}, which reads it for all: set it there",
          hints.file, describe(r, locations[r]), describe(0, locations[0]));
    check(!hints.digest || hints.digest == first.digest, Code::kInvalidArgument,
          "RINGCOLL_TOPOLOGY: the file {} of {} differs from {} of {}: give all ranks the same "
          "file, or only rank 0 one",
          hints.file, describe(r, locations[r]), first.file, describe(0, locations[0]));
  }
}

// The lowest rank of each host, in the order of the ranks.
std::vector<Rank> first_ranks(const std::vector<Location>& locations) {
  std::vector<Rank> ranks;
  std::set<std::string_view> seen;
  for (Rank r = 0; r < static_cast<Rank>(locations.size()); r++)
    if (seen.insert(locations[r].host_id).second) ranks.push_back(r);
  return ranks;
}

// The file may have short names and the hosts long ones, or the other way round.
const Placements::value_type* look_up(const Placements& placements, const std::string& name) {
  auto found = placements.find(name);
  if (found == placements.end()) found = placements.find(name.substr(0, name.find('.')));
  if (found == placements.end()) {
    found = placements.lower_bound(name + ".");
    if (found != placements.end() && !found->first.starts_with(name + "."))
      found = placements.end();
  }
  return found == placements.end() ? nullptr : &*found;
}

bool has_slurm_address(const Location& location) { return !location.hints.slurm_address.empty(); }

std::string levels(const Placement& placement) {
  size_t count = placement.groups.size();
  return fmt::format("{} level{}", count, count == 1 ? "" : "s");
}

std::string some_names(const Placements& placements) {
  std::string names;
  size_t shown = 0;
  for (auto at = placements.begin(); at != placements.end() && shown < kMostNamed; ++at, shown++)
    names += (shown ? ", " : "") + at->first;
  return names + (shown < placements.size() ? ", …" : "");
}

// Places hosts by their names; all must be at the same depth. Returns the source.
std::string placement_by_file(std::vector<Location>* locations) {
  const Hints& first = locations->front().hints;
  std::string source = "RINGCOLL_TOPOLOGY=" + first.file;
  Placements placements;
  try {
    placements = parse_topology(first.text);
  } catch (const Error& error) {
    throw error.within(source);
  }
  const Placements::value_type* before = nullptr;
  for (Rank r : first_ranks(*locations)) {
    Location& location = (*locations)[r];
    auto* found = look_up(placements, location.host_name);
    check(
        found, Code::kInvalidArgument,
        "{} does not name host {}, of {}; it names {}. Add the host, or set RINGCOLL_HOSTID to the "
        "name that the host has in the file",
        source, location.host_name, describe(r, location), some_names(placements));
    if (!before) before = found;
    const Placement &one = before->second, &other = found->second;
    check(one.groups.size() == other.groups.size(), Code::kInvalidArgument,
          "{}: {}: host {} has {} of switches above it, but host {} ({}) has {}: give all hosts "
          "the same number",
          source, other.why, found->first, levels(other), before->first, one.why, levels(one));
    location.placement = found->second;
  }
  return source;
}

// Places hosts by SLURM's addresses; each task has the address of its node. A launcher that passes
// its own environment on to ranks elsewhere (mpirun, horovodrun) makes that wrong: then several
// machines have one address. Returns why the addresses are not used, or "".
std::string placement_by_slurm(std::vector<Location>* locations) {
  std::map<std::string, std::string_view> machine_at;  // by address
  std::vector<std::pair<Rank, Placement>> found;
  for (Rank r : first_ranks(*locations)) {
    const Location& location = (*locations)[r];
    const Hints& hints = location.hints;
    auto placement = slurm_placement(hints.slurm_address, hints.slurm_pattern);
    if (!placement) return fmt::format("host {} has none that names a switch", location.host_name);
    if (!found.empty() && found[0].second.groups.size() != placement->groups.size())
      return fmt::format("host {} has another number of levels than host {}", location.host_name,
                         locations->front().host_name);
    auto known = machine_at.emplace(hints.slurm_address, location.machine).first;
    if (known->second != location.machine)
      return fmt::format("{} is set on several machines, so a launcher has copied it",
                         hints.slurm_address);
    found.emplace_back(r, std::move(*placement));
  }
  for (auto& [rank, placement] : found) (*locations)[rank].placement = std::move(placement);
  return "";
}

}  // namespace

Hints Hints::of(const std::string& file, bool first_rank) {
  auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "").substr(0, kMaxFieldBytes);
  };
  Hints hints{.file = file.substr(0, kMaxFieldBytes)};
  hints.slurm_address = variable("SLURM_TOPOLOGY_ADDR");
  hints.slurm_pattern = variable("SLURM_TOPOLOGY_ADDR_PATTERN");
  if (file.empty()) return hints;
  auto text = read_small_file(file, kMaxTopologyBytes, &hints.failure);
  if (!text) return hints;
  hints.digest = digest_of(*text);
  if (first_rank) hints.text = std::move(*text);
  return hints;
}

void Hints::encode(WireWriter* writer) const {
  writer->put(digest);
  for (const std::string* field : {&file, &failure, &slurm_address, &slurm_pattern})
    writer->put_text(std::string_view(*field).substr(0, kMaxFieldBytes));
  writer->put_text(text);
}

Hints Hints::decode(WireReader* reader) {
  Hints hints;
  hints.digest = reader->get<uint64_t>();
  for (std::string* field :
       {&hints.file, &hints.failure, &hints.slurm_address, &hints.slurm_pattern})
    *field = reader->get_text(kMaxFieldBytes);
  hints.text = reader->get_text(kMaxTopologyBytes);
  return hints;
}

std::optional<Placement> slurm_placement(const std::string& address, const std::string& pattern) {
  auto kinds = split_outside_brackets(pattern, '.');
  auto names = split_outside_brackets(address, '.', kinds.size());
  if (names.size() != kinds.size() || kinds.back() != "node" || kinds.size() < 2 ||
      kinds.size() > kMaxLevels || names.back().empty())
    return {};
  names.pop_back();
  return Placement{{names.begin(), names.end()}, 0, address};
}

std::vector<Location> find_placements(std::vector<Location> locations) {
  if (locations.empty() || !locations[0].placement_source.empty()) return locations;
  check_files(locations);
  std::string source = "host names";
  if (!locations[0].hints.file.empty()) {
    source = placement_by_file(&locations);
  } else if (std::ranges::any_of(locations, has_slurm_address)) {
    std::string why_not = placement_by_slurm(&locations);
    source = why_not.empty()
                 ? "SLURM_TOPOLOGY_ADDR"
                 : fmt::format("{} (SLURM_TOPOLOGY_ADDR is not used: {})", source, why_not);
  }
  std::map<std::string_view, const Placement*> of_host;
  for (Location& location : locations) {
    auto [known, fresh] = of_host.emplace(location.host_id, &location.placement);
    if (!fresh) location.placement = *known->second;
    location.placement_source = source;
    location.hints = {};
  }
  return locations;
}

}  // namespace ringcoll

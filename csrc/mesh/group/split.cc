#include "mesh/group/split.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "connect/auth.h"
#include "life/lifelines.h"
#include "mesh/mesh.h"

namespace ringcoll {
namespace {

// Gathers blobs of any length over all ranks of the parent.
std::vector<std::string> gather_blobs(const Group& parent, const Gather& gather,
                                      const std::string& mine) {
  auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(parent.size());
  gather(&length, sizeof length, lengths.data(), nullptr);
  std::string all(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}), '\0');
  gather(mine.data(), length, all.data(), lengths.data());
  std::vector<std::string> blobs;
  size_t at = 0;
  for (int64_t bytes : lengths) {
    blobs.push_back(all.substr(at, bytes));
    at += bytes;
  }
  return blobs;
}

void check_group(const Group& parent, std::span<const Rank> group) {
  Rank size = parent.size();
  std::vector<bool> seen(size, false);
  for (Rank r : group) {
    check(r >= 0 && r < size, Code::kInvalidArgument, "{} is not a rank of this communicator of {}",
          r, size);
    check(!seen[r], Code::kInvalidArgument, "rank {} is named twice in the group", r);
    seen[r] = true;
  }
  check(group.empty() || seen[parent.rank()], Code::kInvalidArgument,
        "rank {} is not in the group that it passes; pass an empty group to stay out",
        parent.rank());
}

using Hash = std::array<uint8_t, 16>;

/// What a rank says in a split, to all ranks of the parent. It is sent as it is in memory: builds
/// are equal, widths are fixed, and there is no padding.
struct Saying {
  Hash group{};  // of the group's ranks, in their order
  int32_t ranks = 0;
  uint32_t refuses = 0;
  Group::Offer offer;
};
static_assert(sizeof(Saying) == 256 && std::has_unique_object_representations_v<Saying>);

Hash hash_of(std::span<const Rank> group) {
  auto whole = make_group_id({reinterpret_cast<const char*>(group.data()), group.size_bytes()});
  Hash hash;
  std::ranges::copy_n(whole.begin(), hash.size(), hash.begin());
  return hash;
}

// True if all ranks of each group have named that group, and no rank refuses. All ranks get the
// same result.
bool fits(std::span<const Saying> all) {
  std::map<Hash, int32_t> named;
  for (const Saying& saying : all) named[saying.group] += saying.ranks > 0;
  return std::ranges::all_of(all, [&](const Saying& saying) {
    return !saying.refuses && (saying.ranks == 0 || named[saying.group] == saying.ranks);
  });
}

std::vector<Rank> ranks_of(const std::string& bytes) {
  std::vector<Rank> ranks;
  for (size_t at = 0; at + sizeof(Rank) <= bytes.size(); at += sizeof(Rank))
    std::memcpy(&ranks.emplace_back(), &bytes[at], sizeof(Rank));
  return ranks;
}

std::string names_of(std::span<const Rank> group) {
  return group.empty() ? "none" : fmt::format("{}", fmt::join(group, ", "));
}

// Makes a second round, as all ranks do if the first one does not fit. If a rank has passed a bad
// argument, all ranks raise that, since the call is collective, and the communicator stays good.
// Otherwise two ranks disagree, which poisons as in any call.
[[noreturn]] void explain(const Group& parent, const Gather& gather, std::span<const Rank> group,
                          const std::string& refused) {
  std::string mine(reinterpret_cast<const char*>(group.data()), group.size_bytes());
  auto refusals = gather_blobs(parent, gather, refused);
  auto groups = gather_blobs(parent, gather, mine);
  for (size_t r = 0; r < refusals.size(); r++)
    check(refusals[r].empty(), Code::kInvalidArgument, "split: rank {}: {}", r, refusals[r]);
  for (size_t r = 0; r < groups.size(); r++) {
    std::vector<Rank> theirs = ranks_of(groups[r]);
    for (Rank other : theirs) {
      if (groups.at(other) == groups[r]) continue;
      Error error(Code::kMismatch,
                  fmt::format("split: ranks disagree about the group: rank {} names {}; rank {}, "
                              "which is one of them, names {}: all ranks of a group must name the "
                              "same ranks in the same order",
                              r, names_of(theirs), other, names_of(ranks_of(groups.at(other)))),
                  other);
      parent.health().poison(error);
      throw error;
    }
  }
  throw Error(Code::kInternal, "split: ranks do not agree, and it is not found why");
}

/// A group that all ranks have agreed on. If it cannot be made on this rank, this rank has to tell
/// the others.
struct Agreed {
  std::unique_ptr<Group> group;  // null: this rank is in none
  std::vector<Group::Offer> offers;
  GroupNumber number = 0;
};

void agree(const std::shared_ptr<Mesh>& mesh, const Group& parent, std::span<const Rank> ranks,
           const Gather& gather, Agreed* agreed) {
  std::string refused;
  Saying mine;
  try {
    check_group(parent, ranks);
    if (!ranks.empty()) agreed->group = part_of(mesh, parent, ranks);
  } catch (const std::exception& error) {  // of any kind: the others wait for this rank
    refused = as_error(error).what();
  }
  mine.refuses = refused.empty() ? 0 : 1;
  mine.ranks = refused.empty() ? static_cast<int32_t>(ranks.size()) : 0;
  if (mine.ranks > 0) mine.group = hash_of(ranks), mine.offer = agreed->group->offer();
  std::vector<Saying> all(parent.size());
  gather(&mine, sizeof mine, all.data(), nullptr);
  if (!fits(all))
    explain(parent, gather, refused.empty() ? ranks : std::span<const Rank>(), refused);
  if (agreed->group) agreed->number = all[ranks[agreed->group->numbered_by()]].offer.number;
  // No rank uses a group before all of its ranks know its number. A rank that runs out of memory in
  // the first round could not tell the others which group has failed.
  std::vector<std::byte> known(parent.size());
  gather(known.data() + parent.rank(), 1, known.data(), nullptr);
  if (!agreed->group) return;
  for (Rank rank : ranks) agreed->offers.push_back(all[rank].offer);
}

}  // namespace

std::unique_ptr<Group> part_of(const std::shared_ptr<Mesh>& mesh, const Group& parent,
                               std::span<const Rank> ranks) {
  std::vector<Rank> members;
  for (Rank rank : ranks) members.push_back(parent.members().at(rank));
  return std::make_unique<Group>(mesh, std::move(members));
}

std::unique_ptr<Group> split(const std::shared_ptr<Mesh>& mesh, Group& parent,
                             std::span<const Rank> ranks, const Gather& gather) {
  Agreed agreed;
  try {
    agree(mesh, parent, ranks, gather, &agreed);
  } catch (const std::exception& caught) {
    Error error = as_error(caught);
    // Other ranks may still be in split(). All raise an Error alike, but know of nothing else.
    if (!dynamic_cast<const Error*>(&caught)) parent.health().poison(error);
    // Others may use the group already. It numbers ranks in another way than the error does.
    if (agreed.number != 0)
      mesh->lifelines().fail(agreed.number, Error(error.code(), error.what()));
    throw;
  }
  if (agreed.group) agreed.group->join(agreed.offers);
  return std::move(agreed.group);
}

}  // namespace ringcoll

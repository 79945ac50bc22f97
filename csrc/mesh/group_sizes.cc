#include "mesh/group_sizes.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace ringcoll {
namespace {

constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

// The share of each rank's memory in the limit on addresses (`ulimit -v`), of which peers that map
// it use as many, and in the limit on file length (`ulimit -f`), since the kernel counts shared
// memory as a file.
constexpr rlim_t kAddressShare = 16, kFileShare = 4;
// Under a limit there is room for this many groups with calls in flight.
constexpr size_t kLeastGroups = 64;
// A call of a group has as much memory as one of all ranks, within these bounds.
constexpr size_t kLeastCallBytes = kMiB, kMostCallBytes = 256 * kMiB;
// Short calls need no more: four pieces of 8 KiB, each with two banks.
constexpr size_t kShortBytes = 64 * kKiB;
// Messages need many stretches of long ones, to several peers.
constexpr size_t kMessageBytes = 4 * kMiB;
constexpr size_t kLeastPartBytes = 64 * kMiB, kMostPartBytes = 2 * kGiB;

size_t limit_of(__rlimit_resource_t resource, rlim_t share) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return limit.rlim_cur / share;
}

}  // namespace

size_t affordable_group_bytes() {
  return std::min(limit_of(RLIMIT_AS, kAddressShare), limit_of(RLIMIT_FSIZE, kFileShare));
}

GroupSizes sizes_of_groups(size_t group_bytes, size_t arena_bytes, size_t ranks_of_machine) {
  bool limited = group_bytes != SIZE_MAX;
  size_t ranks = std::max<size_t>(ranks_of_machine, 1);
  auto count = [&](size_t for_one_rank, size_t most, size_t under_limit) {
    return limited ? under_limit : std::clamp(for_one_rank / ranks, kLeastGroups, most);
  };
  size_t each = group_bytes / kLeastGroups / kLeastCallBytes * kLeastCallBytes;
  each = std::min(std::clamp(each, kLeastCallBytes, kMostCallBytes), arena_bytes);
  return {.short_calls = {std::min(kShortBytes, each), count(65536, 8192, 1024)},
          .calls = {each, count(4096, 1024, kLeastGroups)},
          .messages = {std::min(kMessageBytes, each), count(8192, 2048, kLeastGroups)},
          .part_bytes =
              std::clamp(limited ? group_bytes / 4 : SIZE_MAX, kLeastPartBytes, kMostPartBytes)};
}

}  // namespace ringcoll

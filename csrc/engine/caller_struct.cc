#include "engine/caller_struct.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ringcoll {
namespace {

// Longer than any struct will ever be. A caller with a larger struct_size has not set it, so
// nothing else of its struct is read.
constexpr size_t kLongestStruct = 4096;

constexpr std::array<size_t, RINGCOLL_ABI_REVISION> kCallSizes = {offsetof(rc_call, timeout_s),
                                                                  sizeof(rc_call), sizeof(rc_call)};
constexpr std::array<size_t, RINGCOLL_ABI_REVISION> kOptionsSizes = {
    sizeof(rc_comm_options), sizeof(rc_comm_options), sizeof(rc_comm_options)};
constexpr int kMessagesSince = 2;
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kMessagesSince + 1> kMessageSizes = {
    sizeof(rc_message), sizeof(rc_message)};
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kMessagesSince + 1> kInfoSizes = {
    sizeof(rc_message_info), sizeof(rc_message_info)};
constexpr int kAgentsSince = 3;
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kAgentsSince + 1> kAgentOptionsSizes = {
    sizeof(rc_agent_options)};
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kAgentsSince + 1> kCopiesSizes = {
    sizeof(rc_copies)};
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kAgentsSince + 1> kEventSizes = {
    sizeof(rc_event)};
constexpr std::array<size_t, RINGCOLL_ABI_REVISION - kAgentsSince + 1> kTableCallSizes = {
    sizeof(rc_table_call)};
static_assert(kCallSizes.back() == sizeof(rc_call));
static_assert(kOptionsSizes.back() == sizeof(rc_comm_options));

// The layout that callers of revision 1 were compiled with; it never changes. (tests/abi compares
// the two headers in full.)
static_assert(sizeof(void*) != 8 || (kCallSizes[0] == 72 && kOptionsSizes[0] == 56));
static_assert(sizeof(void*) != 8 ||
              (offsetof(rc_call, collective) == 8 && offsetof(rc_call, dtype) == 12 &&
               offsetof(rc_call, op) == 16 && offsetof(rc_call, root) == 20 &&
               offsetof(rc_call, buffers) == 24 && offsetof(rc_call, buffer_count) == 32 &&
               offsetof(rc_call, counts) == 40 && offsetof(rc_call, recv_counts) == 48 &&
               offsetof(rc_call, prescale) == 56 && offsetof(rc_call, postscale) == 64));
static_assert(sizeof(void*) != 8 ||
              (offsetof(rc_comm_options, rank) == 8 && offsetof(rc_comm_options, size) == 12 &&
               offsetof(rc_comm_options, store) == 16 && offsetof(rc_comm_options, name) == 24 &&
               offsetof(rc_comm_options, exchange) == 32 &&
               offsetof(rc_comm_options, exchange_state) == 40 &&
               offsetof(rc_comm_options, timeout_s) == 48));
// The structs without struct_size. Callers pass arrays of them, so they cannot grow.
static_assert(sizeof(void*) != 8 || (sizeof(rc_source) == 24 && sizeof(rc_copy) == 48));
static_assert(sizeof(void*) != 8 || (sizeof(rc_buffer) == 24 && offsetof(rc_buffer, output) == 8 &&
                                     offsetof(rc_buffer, count) == 16));

// "72 bytes in revision 1 of the C ABI, 96 in 2".
std::string sizes_text(const StructHistory& history) {
  std::string text;
  for (size_t i = 0; i < history.sizes.size(); i++)
    text += i == 0 ? fmt::format("{} bytes in revision {} of the C ABI", history.sizes[0],
                                 history.since)
                   : fmt::format(", {} in {}", history.sizes[i], history.since + i);
  return text;
}

bool is_zero(const std::byte* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

StructHistory history_of(const rc_call*) { return {"rc_call", kCallSizes}; }
StructHistory history_of(const rc_comm_options*) { return {"rc_comm_options", kOptionsSizes}; }
StructHistory history_of(const rc_message*) {
  return {"rc_message", kMessageSizes, kMessagesSince};
}
StructHistory history_of(const rc_message_info*) {
  return {"rc_message_info", kInfoSizes, kMessagesSince};
}

StructHistory history_of(const rc_agent_options*) {
  return {"rc_agent_options", kAgentOptionsSizes, kAgentsSince};
}
StructHistory history_of(const rc_copies*) { return {"rc_copies", kCopiesSizes, kAgentsSince}; }
StructHistory history_of(const rc_event*) { return {"rc_event", kEventSizes, kAgentsSince}; }
StructHistory history_of(const rc_table_call*) {
  return {"rc_table_call", kTableCallSizes, kAgentsSince};
}

void check_size(size_t size, const StructHistory& history) {
  bool newer = size > history.sizes.back() && size <= kLongestStruct;
  if (!newer && std::ranges::find(history.sizes, size) == history.sizes.end())
    throw Error(Code::kInvalidArgument,
                fmt::format("{}.struct_size is {}, but it has {}: set it to sizeof({})",
                            history.name, size, sizes_text(history), history.name));
}

void copy_from_caller(const void* given, void* copy, const StructHistory& history) {
  check(given != nullptr, Code::kInvalidArgument, "{} is NULL", history.name);
  const auto* bytes = static_cast<const std::byte*>(given);
  size_t size = 0, known = history.sizes.back();
  std::memcpy(&size, bytes, sizeof size);
  check_size(size, history);
  bool newer = size > known;
  check(!newer || is_zero(bytes + known, size - known), Code::kInvalidArgument,
        "{0} of {1} bytes, from a later revision of the C ABI than {2}, which is ringcoll {3}'s "
        "({4} bytes), has something set in what only the later one has: install the ringcoll of "
        "that header, or leave those fields 0",
        history.name, size, RINGCOLL_ABI_REVISION, RINGCOLL_VERSION, known);
  std::memcpy(copy, bytes, std::min(size, known));
}

}  // namespace ringcoll

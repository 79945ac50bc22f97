#include "fuzz_calls.h"

namespace fuzz {
namespace {

constexpr size_t kElementBytes[RC_DTYPE_COUNT] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

/// What the table at rc_call says of one buffer, in elements. 0: the address is not looked at.
struct Extents {
  int64_t input = 0;
  int64_t output = 0;
  int64_t input_in_output = 0;  // where the input lies in the output, in place
  int64_t output_in_input = 0;
};

bool is_possible(int64_t count) { return count >= 0 && count <= kNoMemory; }
bool are_possible(const std::vector<int64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), is_possible);
}

// INT64_MAX if it overflows: counts that the collective does not look at may be anything.
int64_t sum(const std::vector<int64_t>& counts, size_t first = 0, size_t end = SIZE_MAX) {
  int64_t total = 0;
  for (size_t i = first; i < std::min(end, counts.size()); i++)
    if (__builtin_add_overflow(total, counts[i], &total)) return INT64_MAX;
  return total;
}

Extents extents(const rc_call& call, const Place& place, int64_t count,
                const std::vector<int64_t>& given, const std::vector<int64_t>& received) {
  std::vector<int64_t> alike(static_cast<size_t>(place.size), count);
  const auto& counts = call.counts ? given : alike;
  const auto& from = call.recv_counts ? received : alike;
  auto rank = static_cast<size_t>(place.rank);
  int64_t own = counts[rank], all = sum(counts), before = sum(counts, 0, rank);
  const Extents table[RC_COLLECTIVE_COUNT] = {
      {count, count},        {own, all, before}, {all, own, 0, before},
      {count, count},        {count, count},     {own, all, before},
      {all, own, 0, before}, {all, sum(from)},   {},
      {count, count},        {count, count}};
  Extents needed = table[call.collective];
  if (call.root == place.rank) return needed;
  bool root_reads = call.collective == RC_BROADCAST || call.collective == RC_SCATTER;
  bool root_writes = call.collective == RC_REDUCE || call.collective == RC_GATHER;
  if (root_reads) needed.input = needed.output_in_input = 0;
  if (root_writes) needed.output = needed.input_in_output = 0;
  return needed;
}

void* anywhere(Bytes& bytes) {
  auto address = bytes.one_of<uintptr_t>({0, 1, ~uintptr_t{0}, uintptr_t{1} << 63, 4096});
  return reinterpret_cast<void*>(address);  // NOLINT: nobody looks there
}

/// Gives a buffer its memory: apart, in place, overlapping, or none.
void put(rc_buffer& buffer, const Extents& extents, size_t element, Bytes& bytes, Memory& memory) {
  size_t in = static_cast<size_t>(extents.input) * element;
  size_t out = static_cast<size_t>(extents.output) * element;
  size_t how = bytes.below(8);
  size_t shift = bytes.rarely(4) ? bytes.below(8) : 0;
  if (how == 4 || how == 5) {
    size_t input_at = static_cast<size_t>(extents.input_in_output) * element;
    size_t output_at = static_cast<size_t>(extents.output_in_input) * element;
    if (how == 5) output_at += bytes.byte() % 16;
    size_t whole = std::max(input_at + in, output_at + out);
    uint8_t* data = memory.emplace_back(whole, 1, shift).data();
    buffer.input = data + input_at;
    buffer.output = data + output_at;
    return;
  }
  buffer.input = anywhere(bytes);
  buffer.output = anywhere(bytes);
  if (in > 0) {
    Block& block = memory.emplace_back(in, 1, shift);
    block.make_read_only();
    buffer.input = block.data();
  }
  if (out > 0) buffer.output = memory.emplace_back(out, 1, shift).data();
  if (how != 6) return;
  if (bytes.rarely(2))
    buffer.input = nullptr;
  else
    buffer.output = nullptr;
}

template <typename Enum>
bool choose(Enum& field, int32_t count, Bytes& bytes) {
  int32_t number = bytes.number(count);
  std::memcpy(&field, &number, sizeof number);
  return number >= 0 && number < count;
}

std::vector<int64_t> some_counts(size_t size, Bytes& bytes) {
  std::vector<int64_t> counts(size);
  for (int64_t& count : counts) count = bytes.count();
  return counts;
}

int64_t how_many(const std::vector<rc_buffer>& buffers, Bytes& bytes) {
  auto count = static_cast<int64_t>(buffers.size());
  if (!bytes.rarely(16)) return count;
  int64_t other = bytes.count();
  return is_possible(other) ? std::min(other, count) : other;
}

bool has_root(const rc_call& call) {
  return call.collective == RC_BROADCAST || call.collective == RC_REDUCE ||
         call.collective == RC_GATHER || call.collective == RC_SCATTER;
}

bool takes_counts(const rc_call& call) {
  return call.collective != RC_ALLREDUCE && call.collective != RC_BROADCAST &&
         call.collective != RC_REDUCE && call.collective != RC_BARRIER &&
         call.collective != RC_SCAN && call.collective != RC_EXSCAN;
}

bool is_possible(const Collective& asked, const Place& place) {
  const rc_call& call = asked.call;
  auto used = static_cast<size_t>(call.buffer_count);
  if (call.buffer_count < 0 || used > asked.buffers.size() || (used > 0 && !call.buffers))
    return false;
  if (has_root(call) && (call.root < 0 || call.root >= place.size)) return false;
  if (takes_counts(call) && (used != 1 || !are_possible(asked.counts))) return false;
  if (call.collective == RC_ALLTOALL &&
      (!call.counts != !call.recv_counts || !are_possible(asked.recv_counts)))
    return false;
  return std::all_of(asked.buffers.begin(), asked.buffers.begin() + call.buffer_count,
                     [](const rc_buffer& buffer) { return is_possible(buffer.count); });
}

/// The arrays of a call, before there is memory for its buffers.
void fill(Collective& asked, const Place& place, bool is_barrier, Bytes& bytes) {
  rc_call& call = asked.call;
  auto size = static_cast<size_t>(place.size);
  size_t usual = is_barrier ? 0 : 1;
  asked.buffers.resize(bytes.rarely(4) ? bytes.below(5) : usual);
  for (rc_buffer& buffer : asked.buffers) buffer = {nullptr, nullptr, bytes.count()};
  if (bytes.rarely(4)) call.counts = (asked.counts = some_counts(size, bytes)).data();
  if (call.counts ? !bytes.rarely(8) : bytes.rarely(16))
    call.recv_counts = (asked.recv_counts = some_counts(size, bytes)).data();
  call.buffer_count = how_many(asked.buffers, bytes);
  call.buffers = asked.buffers.empty() || bytes.rarely(32) ? nullptr : asked.buffers.data();
}

}  // namespace

double seconds(Bytes& bytes, bool zero, bool forever) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double brief = 0.002;
  switch (bytes.below(8)) {
    case 5:
      return bytes.one_of({1e-9, std::numeric_limits<double>::denorm_min()});
    case 6:
      return bytes.one_of({std::numeric_limits<double>::quiet_NaN(), -1.0, -kInfinity});
    case 7:
      return forever ? bytes.one_of({kInfinity, 1e300, 1e10}) : brief;
    default:
      return zero ? 0 : brief;
  }
}

Collective collective(Bytes& bytes, const Place& place, Memory& memory) {
  Collective asked;
  rc_call& call = asked.call;
  call.struct_size = sizeof call;
  bool exists = choose(call.collective, RC_COLLECTIVE_COUNT, bytes);
  exists &= choose(call.dtype, RC_DTYPE_COUNT, bytes);
  exists &= choose(call.op, RC_OP_COUNT, bytes);
  call.root = bytes.number(place.size);
  fill(asked, place, exists && call.collective == RC_BARRIER, bytes);
  call.prescale = bytes.factor();
  call.postscale = bytes.factor();

  bool possible = exists && is_possible(asked, place);
  asked.must_be_refused = !possible;
  for (rc_buffer& buffer : asked.buffers) {
    Extents needed;
    if (possible && is_possible(buffer.count))  // as are all that buffer_count says
      needed = extents(call, place, buffer.count, asked.counts, asked.recv_counts);
    put(buffer, needed, exists ? kElementBytes[call.dtype] : 1, bytes, memory);
  }
  return asked;
}

Message message(Bytes& bytes, const Place& place, bool receives, Memory& memory) {
  Message asked;
  rc_message& message = asked.message;
  message.struct_size = sizeof message;
  message.peer = receives && bytes.rarely(4) ? RC_ANY_SOURCE : bytes.number(place.size);
  message.tag = receives && bytes.rarely(4) ? RC_ANY_TAG : bytes.number(3);
  message.bytes = bytes.count();
  asked.must_be_refused = !is_possible(message.bytes);
  size_t there = asked.must_be_refused ? 0 : static_cast<size_t>(message.bytes);
  Block& block = memory.emplace_back(there, 1, bytes.rarely(4) ? bytes.below(8) : 0);
  if (!receives) block.make_read_only();
  message.data = there == 0 ? anywhere(bytes) : bytes.rarely(16) ? nullptr : block.data();
  return asked;
}

}  // namespace fuzz

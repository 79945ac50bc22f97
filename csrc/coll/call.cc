#include "coll/call.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "reduce/reduce.h"

namespace ringcoll {
namespace {

constexpr size_t kMostCountsShown = 16;

bool has_elements(const Call& call, Extent extent, const rc_buffer& buffer, Rank rank) {
  auto any = [](std::span<const int64_t> counts) {
    return std::ranges::any_of(counts, [](int64_t count) { return count > 0; });
  };
  if (extent == Extent::kNone) return false;
  if (extent == Extent::kOwnChunk) return call.count_of(rank) > 0;
  if (extent == Extent::kAllChunks && !call.counts.empty()) return any(call.counts);
  if (extent == Extent::kReceived && !call.recv_counts.empty()) return any(call.recv_counts);
  return buffer.count > 0;
}

int64_t extent_of(const Call& call, Extent extent, const rc_buffer& buffer, Rank rank, Rank size) {
  auto sum = [&](std::span<const int64_t> counts) {
    if (counts.empty()) return buffer.count * size;
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  switch (extent) {
    case Extent::kNone:
      return 0;
    case Extent::kVector:
      return buffer.count;
    case Extent::kOwnChunk:
      return call.count_of(rank);
    case Extent::kAllChunks:
      return sum(call.counts);
    case Extent::kReceived:
      return sum(call.recv_counts);
  }
  return 0;
}

// For a call in place: the element of its longer buffer at which its shorter buffer begins.
int64_t index_of_own(const Call& call, Rank rank) {
  const CollectiveTraits& traits = traits_of(call.collective);
  if (traits.input != Extent::kOwnChunk && traits.output != Extent::kOwnChunk) return 0;
  int64_t before = 0;
  for (Rank r = 0; r < rank; r++) before += call.count_of(r);
  return before;
}

// In place, output and input elements of the same index in the call lie at the same address. With
// any other overlap, an earlier piece of the call would overwrite input of a later piece.
bool in_place(const Call& call, const rc_buffer& b, Rank rank) {
  auto in = static_cast<const std::byte*>(b.input), out = static_cast<const std::byte*>(b.output);
  auto own = index_of_own(call, rank) * static_cast<int64_t>(size_of(call.dtype));
  if (traits_of(call.collective).input == Extent::kOwnChunk) return in == out + own;
  if (traits_of(call.collective).output == Extent::kOwnChunk) return out == in + own;
  return in == out && (!call.exchanges() || std::ranges::equal(call.counts, call.recv_counts));
}

/// Memory that a call reads or writes.
struct MemoryRange {
  intptr_t first = 0, end = 0;
  bool written = false;
};

MemoryRange range_of(const Call& call, const rc_buffer& b, bool output, Rank rank, Rank size) {
  const CollectiveTraits& traits = traits_of(call.collective);
  const void* data = output ? b.output : b.input;
  if (!data) return {};
  auto first = reinterpret_cast<intptr_t>(data);
  int64_t count = extent_of(call, output ? traits.output : traits.input, b, rank, size);
  return {first, first + count * static_cast<int64_t>(size_of(call.dtype)), output};
}

// Modulo 2^64, since the addresses of empty buffers may be any.
intptr_t distance(const rc_buffer& b) {
  return static_cast<intptr_t>(reinterpret_cast<uintptr_t>(b.input) -
                               reinterpret_cast<uintptr_t>(b.output));
}

bool are_apart(const MemoryRange& x, const MemoryRange& y) {
  return x.end <= y.first || y.end <= x.first || x.first == x.end || y.first == y.end;
}

// All memory that a call may read or write.
std::vector<MemoryRange> memory_of(const Call& call, Rank rank, Rank size) {
  std::vector<MemoryRange> ranges;
  for (const rc_buffer& b : call.buffers)
    for (bool output : {false, true}) ranges.push_back(range_of(call, b, output, rank, size));
  return ranges;
}

void check_overlap(const Call& call, const rc_buffer& b, Rank rank, Rank size) {
  check(are_apart(range_of(call, b, false, rank, size), range_of(call, b, true, rank, size)) ||
            in_place(call, b, rank),
        Code::kInvalidArgument,
        "input and output of {} overlap: pass memory of their own for both, or the same memory, in "
        "place (chunks at their places among all chunks; alltoall with equal counts)",
        name_of(call.collective));
}

// A buffer with elements must have an address.
void check_buffer(const Call& call, size_t i, Rank rank, Rank size) {
  const rc_buffer& b = call.buffers[i];
  const CollectiveTraits& traits = traits_of(call.collective);
  bool is_root = rank == call.root;
  bool reads = is_looked_at(traits.reads, is_root);
  bool writes = is_looked_at(traits.writes, is_root);
  const char* name = name_of(call.collective);
  check(b.input || !reads || !has_elements(call, traits.input, b, rank), Code::kInvalidArgument,
        "buffer {} of {} has no input", i, name);
  check(b.output || !writes || !has_elements(call, traits.output, b, rank), Code::kInvalidArgument,
        "buffer {} of {} has no output", i, name);
  bool uses_output = is_root || traits.writes != Whose::kRoot;
  if (b.input && b.output && reads && uses_output) check_overlap(call, b, rank, size);
}

void check_counts(std::span<const int64_t> counts, const char* name) {
  for (size_t i = 0; i < counts.size(); i++)
    check(counts[i] >= 0, Code::kInvalidArgument, "{}[{}] is {}: a count cannot be negative", name,
          i, counts[i]);
}

// A rank's message to itself is a copy, so both of its counts must be equal.
void check_own_counts(const Call& call, Rank rank) {
  if (call.recv_counts.empty()) return;
  int64_t sent = call.counts[rank], received = call.recv_counts[rank];
  check(sent == received, Code::kInvalidArgument,
        "counts[{0}] is {1} and recv_counts[{0}] is {2}: what this rank sends itself it receives",
        rank, sent, received);
}

// More than a process can address. With this limit, lengths in bytes, sums of them and end
// addresses fit into 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 47;

/// A sum of elements that stays within kMostBytes.
class Length {
 public:
  explicit Length(const Call& call)
      : most_(kMostBytes / static_cast<int64_t>(size_of(call.dtype))) {}
  void add(int64_t count, const char* what, Rank times = 1) {
    check(count <= (most_ - sum_) / times, Code::kInvalidArgument,
          "{} of a call come to more than {} elements, which no memory holds", what, most_);
    sum_ += count * times;
  }

 private:
  const int64_t most_;
  int64_t sum_ = 0;
};

// Precondition: no count is negative.
void check_lengths(const Call& call, Rank size) {
  Length buffers(call), sent(call), received(call);
  for (const rc_buffer& b : call.buffers)
    buffers.add(b.count, "buffers", call.is_vector() ? 1 : size);
  for (int64_t count : call.counts) sent.add(count, "counts");
  for (int64_t count : call.recv_counts) received.add(count, "recv_counts");
}

void check_buffers(const Call& call, Rank rank, Rank size) {
  if (!call.has_data()) {
    check(call.buffers.empty(), Code::kInvalidArgument, "a {} takes no buffers",
          name_of(call.collective));
    return;
  }
  check(call.is_vector() || call.buffers.size() == 1, Code::kInvalidArgument,
        "{} takes one buffer, not {}", name_of(call.collective), call.buffers.size());
  for (size_t i = 0; i < call.buffers.size(); i++)
    check(call.buffers[i].count >= 0, Code::kInvalidArgument, "buffer {} has {} elements", i,
          call.buffers[i].count);
  check_lengths(call, size);
  for (size_t i = 0; i < call.buffers.size(); i++) check_buffer(call, i, rank, size);
}

// C callers may pass any number. Loading an enumeration with a value that it does not have is
// undefined, so the check copies the number.
template <typename Enum>
void check_enum(const Enum& value, int limit, const char* name) {
  int number = 0;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  check(number >= 0 && number < limit, Code::kInvalidArgument, "{} {} does not exist", name,
        number);
}

// 0: all details are defaults. The counts of an alltoall differ between ranks, so only their
// presence is hashed: the choice of the schedule depends on it.
uint32_t hash_of_details(const Call& call) {
  if (call.prescale == 1 && call.named_postscale == 1 && call.counts.empty()) return 0;
  uint64_t hash = 0;
  auto add = [&hash](uint64_t word) {  // the factor is 2^64 / golden ratio, made odd
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  add(std::bit_cast<uint64_t>(call.prescale));
  add(std::bit_cast<uint64_t>(call.named_postscale));
  add(call.counts.size());
  if (!call.exchanges())
    for (int64_t count : call.counts) add(static_cast<uint64_t>(count));
  return std::max<uint32_t>(1, static_cast<uint32_t>(hash));
}

double scale_of(double given, const char* name) {
  check(std::isfinite(given), Code::kInvalidArgument, "{} is {}: it must be finite", name, given);
  if (given == 0) return std::signbit(given) ? 0 : 1;
  return given;
}

}  // namespace

int64_t Call::total() const {
  int64_t sum = 0;
  if (is_vector())
    for (const rc_buffer& b : buffers) sum += b.count;
  for (int64_t c : counts) sum += c;
  return sum;
}

void check_buffer_count(const rc_call& raw) {
  check(raw.buffer_count >= 0 && (raw.buffers || raw.buffer_count == 0), Code::kInvalidArgument,
        "buffers is NULL or buffer_count is negative");
  check(raw.buffer_count <= kMostBytes / static_cast<int64_t>(sizeof(rc_buffer)),
        Code::kInvalidArgument, "buffer_count is {}: no memory holds so many", raw.buffer_count);
}

Call check_call(const rc_call& raw, Rank rank, Rank size) {
  check_enum(raw.collective, RC_COLLECTIVE_COUNT, "collective");
  check_enum(raw.dtype, RC_DTYPE_COUNT, "dtype");
  check_enum(raw.op, RC_OP_COUNT, "op");
  check_buffer_count(raw);

  Call call;
  call.collective = raw.collective;
  call.dtype = raw.dtype;
  call.op = raw.op;
  call.buffers = {raw.buffers, static_cast<size_t>(raw.buffer_count)};
  call.prescale = scale_of(raw.prescale, "prescale");
  call.postscale = call.named_postscale = scale_of(raw.postscale, "postscale");
  check(raw.timeout_s >= 0, Code::kInvalidArgument,
        "timeout_s is {}: it is a number of seconds, or 0 for that of the communicator",
        raw.timeout_s);
  call.timeout_s = raw.timeout_s;
  const CollectiveTraits& traits = traits_of(call.collective);
  if (traits.has_root) {
    call.root = raw.root;
    check(raw.root >= 0 && raw.root < size, Code::kInvalidArgument,
          "root {} is not a rank of this communicator of {}", raw.root, size);
  }
  if (traits.takes_counts() && raw.counts) call.counts = {raw.counts, static_cast<size_t>(size)};
  if (traits.exchanges()) {
    check(!raw.counts == !raw.recv_counts, Code::kInvalidArgument,
          "{} needs both counts and recv_counts, or neither", traits.name);
    if (raw.recv_counts) call.recv_counts = {raw.recv_counts, static_cast<size_t>(size)};
  }
  check_counts(call.counts, "counts");
  check_counts(call.recv_counts, "recv_counts");
  check_own_counts(call, rank);
  check_buffers(call, rank, size);
  if (call.reduces()) {
    combine_kernel(call.dtype, call.op);
    check(!traits.is_prefix() || call.op != RC_AVERAGE, Code::kInvalidArgument,
          "{} has no average, as each rank combines another number of inputs: pass sum, and divide "
          "the result",
          traits.name);
    if (call.op == RC_AVERAGE) call.postscale /= size;
  }
  return call;
}

// True if `raw` equals the last call except for its memory. Fields are compared as bytes: an
// enumeration may hold any number, and the scales 0 and -0 differ.
bool CallCheck::is_like_last(const rc_call& raw) const {
  auto alike = [&](size_t first, size_t end) {
    const auto* mine = reinterpret_cast<const std::byte*>(&last_);
    const auto* theirs = reinterpret_cast<const std::byte*>(&raw);
    return std::memcmp(mine + first, theirs + first, end - first) == 0;
  };
  if (call_.form == 0 || raw.buffer_count != last_.buffer_count || raw.counts || raw.recv_counts ||
      !alike(offsetof(rc_call, collective), offsetof(rc_call, buffers)) ||
      !alike(offsetof(rc_call, prescale), offsetof(rc_call, done)))
    return false;
  return raw.buffer_count == 0 || (raw.buffers && lies_like_last(raw.buffers[0]));
}

// True if the buffer has the length of the last one, and is checked alike: its input and output
// keep their distance, are too far apart to overlap, or are the same.
bool CallCheck::lies_like_last(const rc_buffer& b) const {
  if (b.count != buffer_.count || !b.input != !buffer_.input || !b.output != !buffer_.output)
    return false;
  intptr_t between = distance(b);
  return between == distance(buffer_) || between >= longest_bytes_ || between <= -longest_bytes_ ||
         (between == 0 && call_.is_vector());
}

const Call& CallCheck::operator()(const rc_call& raw) {
  if (is_like_last(raw)) {
    call_.buffers = {raw.buffers, static_cast<size_t>(raw.buffer_count)};
    return call_;
  }
  call_.form = 0;  // in case check_call() throws
  call_ = check_call(raw, rank_, size_);
  if (raw.buffer_count > 1 || raw.counts || raw.recv_counts) return call_;
  last_ = raw;
  call_.form = ++forms_;
  if (raw.buffer_count == 0) return call_;
  buffer_ = raw.buffers[0];
  longest_bytes_ =
      buffer_.count * static_cast<int64_t>(size_of(call_.dtype)) * (call_.is_vector() ? 1 : size_);
  return call_;
}

bool share_memory(const Call& a, const Call& b, Rank rank, Rank size) {
  std::vector<MemoryRange> of_a = memory_of(a, rank, size), of_b = memory_of(b, rank, size);
  for (const MemoryRange& x : of_a)
    for (const MemoryRange& y : of_b)
      if ((x.written || y.written) && !are_apart(x, y)) return true;
  return false;
}

Signature signature_of(const Call& call, Rank size, uint64_t sequence) {
  Signature s;
  s.sequence = static_cast<uint32_t>(sequence);
  s.details = hash_of_details(call);
  s.collective = call.collective;
  s.dtype = call.dtype;
  s.op = call.reduces() ? call.op : 0;
  s.root = call.root;
  if (call.is_vector() || !call.counts.empty())
    s.count = call.total();
  else if (call.has_data())
    s.count = call.buffers[0].count * size;
  if (call.exchanges() && !call.has_equal_counts()) s.count = 0;
  return s;
}

Details details_of(const Call& call) {
  Details details{call.prescale, call.named_postscale, {}};
  if (call.counts.empty()) return details;
  if (call.exchanges()) {
    details.counts = "each rank's own";
    return details;
  }
  auto shown = call.counts.first(std::min(call.counts.size(), kMostCountsShown));
  details.counts = fmt::format("{}", fmt::join(shown, ", "));
  if (shown.size() < call.counts.size())
    details.counts += fmt::format(", … ({} of them)", call.counts.size());
  return details;
}

std::string describe(const Signature& s) {
  auto collective = static_cast<Collective>(s.collective);
  const CollectiveTraits& traits = traits_of(collective);
  std::string text = fmt::format("{} #{}", traits.name, s.sequence);
  if (!traits.has_data()) return text;
  if (traits.exchanges() && s.count == 0 && s.details != 0)
    text += fmt::format(" of {}", name_of(static_cast<DataType>(s.dtype)));
  else
    text += fmt::format(" of {} {}", s.count, name_of(static_cast<DataType>(s.dtype)));
  if (traits.reduces()) text += fmt::format(", {}", name_of(static_cast<ReduceOp>(s.op)));
  if (traits.has_root) text += fmt::format(", root {}", s.root);
  return text;
}

}  // namespace ringcoll

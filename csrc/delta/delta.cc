#include "delta/delta.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "delta/checksum.h"
#include "reduce/compare.h"

namespace ringcoll {
namespace {

static_assert(std::endian::native == std::endian::little, "deltas are written as native numbers");

/// The elements of a block, as many as 16-bit indices can tell apart.
constexpr size_t kBlock = kComparedAtOnce;
constexpr uint32_t kMagic = 0x0a444352;  // "RCD\n"
constexpr uint16_t kVersion = 1;
constexpr uint32_t kWholeBlock = std::numeric_limits<uint32_t>::max();

struct Header {
  uint64_t checksum;
  uint32_t magic;
  uint16_t version;
  uint16_t element_bytes;
  uint64_t bytes;
};
static_assert(sizeof(Header) == 24, "a header has no padding");
constexpr size_t kSummedFrom = offsetof(Header, magic);

void check_elements(size_t bytes, size_t element_bytes) {
  check(
      can_compare(element_bytes) && bytes % element_bytes == 0, Code::kInvalidArgument,
      "a tensor of {} bytes in elements of {}: elements have 1, 2, 4 or 8 bytes, and a tensor has "
      "whole elements",
      bytes, element_bytes);
}

/// The most changed elements of a block of which the indices and values are shorter than the block.
size_t most_indexed(size_t elements, size_t element_bytes) {
  return elements * element_bytes / (sizeof(uint16_t) + element_bytes);
}

/// What find_changed() writes for one block.
struct Found {
  uint16_t indices[kBlock + kChangedBeyond];
  std::byte values[(kBlock + kChangedBeyond) * sizeof(uint64_t)];
};

/// Appends to memory of the caller while there is room.
class Writer {
 public:
  Writer(void* out, size_t capacity) : out_(static_cast<std::byte*>(out)), capacity_(capacity) {}

  bool put(const void* data, size_t bytes) {
    if (bytes > capacity_ - used_) return false;
    copy_bytes(out_ + used_, data, bytes);
    used_ += bytes;
    return true;
  }
  bool put(uint32_t number) { return put(&number, sizeof number); }
  size_t used() const { return used_; }

 private:
  std::byte* out_;
  size_t capacity_;
  size_t used_ = 0;
};

bool put_block(const std::byte* before, const std::byte* now, size_t elements, size_t element_bytes,
               Found& found, Writer& writer) {
  const size_t most = most_indexed(elements, element_bytes);
  const size_t changed =
      find_changed(before, now, elements, element_bytes, most, found.indices, found.values);
  if (changed > most) return writer.put(kWholeBlock) && writer.put(now, elements * element_bytes);
  return writer.put(static_cast<uint32_t>(changed)) &&
         writer.put(found.indices, changed * sizeof(uint16_t)) &&
         writer.put(found.values, changed * element_bytes);
}

/// The record of one block. All pointers lie in the delta.
struct Record {
  size_t first;     // element of the tensor
  size_t elements;  // of the block
  bool is_whole;
  size_t changed;
  const std::byte* indices;
  const std::byte* values;
};

[[noreturn]] void refuse_damaged(const char* what) {
  throw Error(
      Code::kInvalidArgument,
      fmt::format("the delta is damaged: {}. Make or fetch it again, or take the whole tensor",
                  what));
}

/// Reads records one after another. Never leaves the delta, whatever is in it.
class Reader {
 public:
  Reader(const std::byte* records, size_t length) : at_(records), left_(length) {}

  Record next(size_t first, size_t elements, size_t element_bytes) {
    uint32_t changed;
    std::memcpy(&changed, take(sizeof changed), sizeof changed);
    if (changed == kWholeBlock)
      return {first, elements, true, elements, nullptr, take(elements * element_bytes)};
    if (changed > elements) refuse_damaged("a block has more changed elements than elements");
    const std::byte* indices = take(changed * sizeof(uint16_t));
    return {first, elements, false, changed, indices, take(changed * element_bytes)};
  }
  bool at_end() const { return left_ == 0; }

 private:
  const std::byte* take(size_t bytes) {
    if (bytes > left_) refuse_damaged("it ends in the middle of a block");
    left_ -= bytes;
    return std::exchange(at_, at_ + bytes);
  }

  const std::byte* at_;
  size_t left_;
};

/// Calls visit(record) for each block of the tensor.
template <typename Visit>
void for_each_record(const std::byte* delta, size_t length, const Header& header, Visit&& visit) {
  Reader reader(delta + sizeof header, length - sizeof header);
  const size_t total = header.bytes / header.element_bytes;
  for (size_t first = 0; first < total; first += kBlock)
    visit(reader.next(first, std::min(kBlock, total - first), header.element_bytes));
  if (!reader.at_end()) refuse_damaged("it goes on behind its last block");
}

uint16_t index_at(const std::byte* indices, size_t i) {
  uint16_t index;
  std::memcpy(&index, indices + i * sizeof index, sizeof index);
  return index;
}

void check_indices(const Record& record) {
  if (record.is_whole || record.changed == 0) return;
  unsigned disorder = 0;
  for (size_t i = 1; i < record.changed; i++)
    disorder |= index_at(record.indices, i - 1) >= index_at(record.indices, i) ? 1 : 0;
  if (disorder) refuse_damaged("indices do not ascend");
  if (index_at(record.indices, record.changed - 1) >= record.elements)
    refuse_damaged("an index lies outside its block");
}

Header read_header(size_t bytes, const std::byte* delta, size_t length) {
  Header header;
  if (length < sizeof header) refuse_damaged("it is shorter than its header");
  std::memcpy(&header, delta, sizeof header);
  check(header.magic == kMagic, Code::kInvalidArgument, "these {} bytes are no delta", length);
  check(header.version == kVersion, Code::kInvalidArgument,
        "the delta has version {} of the format, and this is ringcoll {}, which reads version {}: "
        "install the same ringcoll where it is made and where it is applied",
        header.version, RINGCOLL_VERSION, kVersion);
  if (checksum(delta + kSummedFrom, length - kSummedFrom) != header.checksum)
    refuse_damaged("its checksum differs");
  check_elements(header.bytes, header.element_bytes);
  check(header.bytes == bytes, Code::kInvalidArgument,
        "the delta belongs to a tensor of {} bytes, and this one has {}", header.bytes, bytes);
  return header;
}

template <typename T>
void scatter(std::byte* block, const Record& record) {
  for (size_t i = 0; i < record.changed; i++)
    std::memcpy(block + index_at(record.indices, i) * sizeof(T), record.values + i * sizeof(T),
                sizeof(T));
}

void apply(std::byte* tensor, const Record& record, size_t element_bytes) {
  std::byte* block = tensor + record.first * element_bytes;
  if (record.is_whole) return copy_bytes(block, record.values, record.elements * element_bytes);
  switch (element_bytes) {
    case 1:
      return scatter<uint8_t>(block, record);
    case 2:
      return scatter<uint16_t>(block, record);
    case 4:
      return scatter<uint32_t>(block, record);
    default:
      return scatter<uint64_t>(block, record);
  }
}

}  // namespace

size_t most_delta_bytes(size_t bytes, size_t element_bytes) {
  check_elements(bytes, element_bytes);
  const size_t blocks = (bytes / element_bytes + kBlock - 1) / kBlock;
  return sizeof(Header) + blocks * sizeof(uint32_t) + bytes;
}

std::optional<size_t> make_delta(const void* before, const void* now, size_t bytes,
                                 size_t element_bytes, void* out, size_t capacity) {
  check_elements(bytes, element_bytes);
  Header header{.checksum = 0,
                .magic = kMagic,
                .version = kVersion,
                .element_bytes = static_cast<uint16_t>(element_bytes),
                .bytes = bytes};
  Writer writer(out, capacity);
  if (!writer.put(&header, sizeof header)) return {};
  const auto* old_bytes = static_cast<const std::byte*>(before);
  const auto* new_bytes = static_cast<const std::byte*>(now);
  auto found = std::make_unique_for_overwrite<Found>();
  for (size_t at = 0; at < bytes; at += kBlock * element_bytes) {
    const size_t elements = std::min(kBlock, (bytes - at) / element_bytes);
    if (!put_block(old_bytes + at, new_bytes + at, elements, element_bytes, *found, writer))
      return {};
  }
  header.checksum =
      checksum(static_cast<std::byte*>(out) + kSummedFrom, writer.used() - kSummedFrom);
  std::memcpy(out, &header.checksum, sizeof header.checksum);
  return writer.used();
}

void apply_delta(void* tensor, size_t bytes, const void* delta, size_t length) {
  const auto* data = static_cast<const std::byte*>(delta);
  const Header header = read_header(bytes, data, length);
  // Two passes: nothing is written before all of the delta is known to be sound.
  for_each_record(data, length, header, check_indices);
  for_each_record(data, length, header, [&](const Record& record) {
    apply(static_cast<std::byte*>(tensor), record, header.element_bytes);
  });
}

size_t changed_elements(const void* before, const void* now, size_t bytes, size_t element_bytes) {
  check_elements(bytes, element_bytes);
  return count_changed(before, now, bytes / element_bytes, element_bytes);
}

}  // namespace ringcoll

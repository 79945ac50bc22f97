#include "transport/shm/endpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/copy.h"
#include "base/error.h"
#include "base/order.h"
#include "reduce/stream.h"
#include "transport/shm/sleep.h"

namespace ringcoll::shm {
namespace {

// The peer reads from memory what was stored past the caches, and this rank does not see that time.
// Between far cores storing alone differs many times over.
constexpr double kOfPastCaches = 2;
// Shorter copies cannot be timed exactly enough.
constexpr uint64_t kLeastTimedBytes = 8 << 10;
// With these bytes, trials take less than one percent of the time.
constexpr uint64_t kWarmUpBytes = 4 << 20, kRestBytes = uint64_t{1} << 30;

bool meets(const SharedMemory& memory, const void* at, size_t bytes) {
  std::less<const std::byte*> before;  // orders pointers into any memory
  auto* first = static_cast<const std::byte*>(at);
  return before(first, memory.data() + memory.bytes()) && before(memory.data(), first + bytes);
}

}  // namespace

std::string ShmEndpoint::link() const {
  return fmt::format("[rank {} -> {}, shm]", pair_.rank, pair_.peer);
}

ShmEndpoint::ShmEndpoint(const Pair& pair)
    : pair_(pair),
      buffers_(pair.my_buffers, pair.their_buffers, pair.leads),
      copies_({.weights = {1, kOfPastCaches},
               .least_bytes = kLeastTimedBytes,
               .first_warm_up_bytes = kWarmUpBytes,
               .warm_up_bytes = kWarmUpBytes,
               .rest_bytes = kRestBytes}) {
  // No other memory has to become visible with either word, so both are relaxed.
  pair_.mine->reads.store(pair_.memory ? pair_.my_base + 1 : 0, std::memory_order_relaxed);
  pair_.mine->lends.store(pair_.my_base + 1, std::memory_order_relaxed);
  pair_.set->links.push_back(this);
}

ShmEndpoint::~ShmEndpoint() {
  if (pair_.on_end) pair_.on_end(last_unread());
  std::erase(pair_.set->links, this);
}

// The stamp in the entry for the peer's message `number`; 0 if it is of another base. It equals
// `number` when the message is there.
uint64_t ShmEndpoint::stamp_of(uint64_t number) const {
  uint64_t stamp = observe(in_entry(number)->stamp) - pair_.their_base;
  return stamp < kBaseStep ? stamp : 0;
}

uint64_t ShmEndpoint::released_by_peer() const {
  uint64_t released = observe(pair_.theirs->released) - pair_.their_base;
  return released < kBaseStep ? released : peer_released_;
}

// The acquire orders the peer's reads of a message before our next write there.
uint64_t ShmEndpoint::load_released() {
  uint64_t released = released_by_peer();
  if (released > sent_ || released < peer_released_) [[unlikely]]
    throw Error(Code::kTransport,
                fmt::format("the peer's count of released messages is corrupt: {} of {} sent {}",
                            released, sent_, link()),
                pair_.peer);
  return peer_released_ = released;
}

uint64_t ShmEndpoint::last_unread() const {
  uint64_t released = std::max(peer_released_, released_by_peer());
  uint64_t number = sent_;
  while (number > released && !kept_[number % kEntries]) number--;
  return number > released ? number : 0;
}

bool ShmEndpoint::has_credit() {
  if (sent_ < peer_released_ + kEntries || sent_ < load_released() + kEntries) return true;
  wants_credit_ = true;
  return false;
}

uint64_t ShmEndpoint::returned_by_peer() const {
  uint64_t returned = observe(pair_.theirs->returned) - pair_.their_base;
  return returned < kBaseStep ? returned : 0;
}

bool ShmEndpoint::has_buffer() {
  if (!buffers_.empty()) return true;
  buffers_.take_back(returned_by_peer());
  return !buffers_.empty();
}

uint64_t ShmEndpoint::publish_entry(Entry& entry, const Envelope& envelope, uint64_t bytes,
                                    bool is_kept) {
  uint64_t number = sent_ + 1;
  if (!is_kept && completed_ == sent_) completed_ = number;
  kept_[number % kEntries] = is_kept;
  entry.bytes = bytes;
  entry.envelope = envelope;
  // The release makes the entry and the payload visible with the stamp.
  publish(entry.stamp, pair_.my_base + number);
  sent_ = number;
  if (sleeps(peer_waiting())) [[unlikely]]
    wake_peer();
  return number;
}

uint64_t ShmEndpoint::try_send(const Envelope& envelope, const void* data, uint64_t bytes) {
  if (bytes <= pair_.inline_bytes) {
    Slice slice{static_cast<const std::byte*>(data), bytes};
    return try_copy(envelope, {&slice, 1}, bytes);
  }
  if (!has_credit()) return 0;
  Entry& entry = *out_entry(sent_ + 1);
  keep(entry, data, bytes);
  return publish_entry(entry, envelope, bytes, true);
}

uint64_t ShmEndpoint::try_copy(const Envelope& envelope, std::span<const Slice> slices,
                               uint64_t bytes) {
  if (!has_credit()) return 0;
  Entry& entry = *out_entry(sent_ + 1);
  if (bytes < kLeastHandedBytes && bytes <= pair_.inline_bytes) {
    put_beside(entry, slices, bytes);
  } else if (bytes <= buffers_.bytes() && has_buffer()) {
    put_in_buffer(entry, slices, bytes);
  } else if (bytes <= pair_.inline_bytes) {
    put_beside(entry, slices, bytes);
  } else {
    invariant(bytes <= buffers_.bytes(), "{} bytes are to be copied {}", bytes, link());
    wants_credit_ = true;
    return 0;
  }
  return publish_entry(entry, envelope, bytes, false);
}

void ShmEndpoint::put_beside(Entry& entry, std::span<const Slice> slices, uint64_t bytes) {
  std::byte* to = entry.payload(bytes);
  for (const Slice& slice : slices) {
    if (slice.bytes > 0) std::memcpy(to, slice.data, slice.bytes);
    to += slice.bytes;
  }
  entry.offset = 0;
}

void ShmEndpoint::put_in_buffer(Entry& entry, std::span<const Slice> slices, uint64_t bytes) {
  uint32_t number = buffers_.hand_over();
  entry.offset = kHanded | number;
  auto copy = [&](auto&& loop) {
    std::byte* to = buffers_.at(number);
    for (const Slice& slice : slices) {
      loop(to, slice.data, slice.bytes);
      to += slice.bytes;
    }
  };
  if (bytes < kLeastTimedBytes)
    return copy([](void* to, const void* from, uint64_t n) { std::memcpy(to, from, n); });
  in_the_faster_way(copies_, bytes,
                    [&](size_t way) { copy(way == kPastCaches ? stream_bytes : copy_bytes); });
}

// Stores where the payload is. The rest of the arena belongs to other parts, and is refused.
void ShmEndpoint::keep(Entry& entry, const void* data, uint64_t bytes) {
  if (lies_in(pair_.extent, data, bytes)) {
    entry.offset = static_cast<uint64_t>(static_cast<const std::byte*>(data) - pair_.arena->data());
    return;
  }
  if (!takes_lent() || meets(*pair_.arena, data, bytes)) [[unlikely]]
    throw Error(Code::kInternal,
                fmt::format("a message of {} bytes is not in this link's part of the arena, too "
                            "long to be sent inline, and not to be read by the peer {}",
                            bytes, link()));
  entry.offset = reinterpret_cast<uintptr_t>(data) | kLent;
}

// A copied message has left when it is sent, a kept one when the peer has released it. Messages are
// counted in order.
uint64_t ShmEndpoint::completed() {
  if (completed_ == sent_) return completed_;
  uint64_t done = std::max(completed_, load_released());
  while (done < sent_ && !kept_[(done + 1) % kEntries]) done++;
  wants_credit_ |= done < sent_;
  return completed_ = done;
}

bool ShmEndpoint::next_is_there() {
  uint64_t number = received_ + 1;
  // The acquire makes the entry and the payload visible with the stamp.
  uint64_t stamp = stamp_of(number);
  if (stamp == number) return true;
  if (stamp > number) [[unlikely]]
    throw Error(Code::kTransport,
                fmt::format("the peer's ring is corrupt: message {} where {} was due {}", stamp,
                            number, link()),
                pair_.peer);
  wants_message_ = true;
  return false;
}

bool ShmEndpoint::try_peek(Envelope* envelope, uint64_t* bytes) {
  if (!next_is_there()) return false;
  const Entry* entry = in_entry(received_ + 1);
  *envelope = entry->envelope;
  *bytes = entry->bytes;
  return true;
}

const std::byte* ShmEndpoint::in_arena(uint64_t number, uint64_t offset, uint64_t bytes) const {
  uint64_t arena = pair_.their_arena->bytes();
  if (bytes > arena || offset > arena - bytes) [[unlikely]]
    throw Error(Code::kTransport,
                fmt::format("message {} of the peer is corrupt: {} bytes at offset {} of an arena "
                            "of {} bytes {}",
                            number, bytes, offset, arena, link()),
                pair_.peer);
  return pair_.their_arena->data() + offset;
}

const std::byte* ShmEndpoint::in_buffer(uint64_t number, uint64_t offset, uint64_t bytes) {
  uint64_t buffer = offset & ~kHanded;
  const std::byte* data = nullptr;
  if (buffer < HandedBuffers::kCount && bytes <= buffers_.bytes())
    data = buffers_.receive(static_cast<uint32_t>(buffer));
  if (!data) [[unlikely]]
    throw Error(Code::kTransport,
                fmt::format("message {} of the peer is corrupt: {} bytes in buffer {}, which it "
                            "does not have {}",
                            number, bytes, buffer, link()),
                pair_.peer);
  return data;
}

// Copies what the peer has lent.
const std::byte* ShmEndpoint::fetch(uint64_t address, void* place, uint64_t bytes) {
  if (!place) {
    if (released_ != received_) [[unlikely]]
      throw Error(Code::kInternal, "a second view of what was lent " + link());
    fetched_.resize(bytes);
    place = fetched_.data();
  }
  if (!read_peer(address, place, bytes))
    throw Error(Code::kTransport,
                fmt::format("process_vm_readv: {} bytes of the memory of process {}, which it has "
                            "lent for this call, cannot be read. Has its caller unmapped them? "
                            "Has a process got a sandbox, or another user, since the communicator "
                            "was made? Then that has to be made afterwards {}",
                            bytes, pair_.pid, link()),
                pair_.peer);
  // The memory is read first, then the word. By this fence and that of revoke(), either the word is
  // seen to be 0, or nothing was read that the peer wrote there after revoke().
  full_fence();
  if (pair_.theirs->lends.load(std::memory_order_relaxed) != pair_.their_base + 1)
    throw Error(
        Code::kPeerLost,
        fmt::format("the call of rank {} has failed: what it had lent for that is not there "
                    "any more {}",
                    pair_.peer, link()),
        pair_.peer);
  return static_cast<const std::byte*>(place);
}

// The caller writes to the memory afterwards. A peer that has read that memory then reads the word.
// The fences of both order this, including the kernel's read.
void ShmEndpoint::revoke() noexcept {
  pair_.mine->lends.store(0, std::memory_order_relaxed);
  full_fence();
}

bool ShmEndpoint::try_recv(void* place, uint64_t capacity, View* view) {
  if (!next_is_there()) return false;
  uint64_t number = received_ + 1;
  const Entry* entry = in_entry(number);
  uint64_t bytes = entry->bytes;  // read once, so that the checked value is the used one
  uint64_t offset = entry->offset;
  const std::byte* data = entry->payload(bytes);
  int8_t buffer = kNoBuffer;
  if ((offset & kHanded) != 0) {
    data = in_buffer(number, offset, bytes);
    buffer = static_cast<int8_t>(offset & ~kHanded);
  } else if (bytes > pair_.inline_bytes) {
    if ((offset & kLent) == 0 || !pair_.memory)
      data = in_arena(number, offset, bytes);
    else if (bytes <= capacity)
      data = fetch(offset & ~kLent, place, bytes);
  }
  buffer_of_[number % kEntries] = buffer;
  view->data = bytes <= capacity ? data : nullptr;
  view->bytes = bytes;
  view->envelope = entry->envelope;
  received_ = number;
  return true;
}

void ShmEndpoint::release() {
  if (released_ >= received_) [[unlikely]]
    throw Error(Code::kInternal, "release() without a view " + link());
  uint64_t number = ++released_;
  int8_t buffer = buffer_of_[number % kEntries];
  bool has_left = buffer != kNoBuffer || in_entry(number)->bytes <= pair_.inline_bytes;
  if (buffer != kNoBuffer) {
    buffers_.take_back(returned_by_peer());
    if (!buffers_.keep(static_cast<uint32_t>(buffer))) {
      publish(pair_.mine->returned, pair_.my_base + buffers_.returned());
      has_left = false;  // the peer may wait for the buffer
    }
  }
  if (has_left && number - told_ < kLazyCredits) return;
  told_ = number;
  publish(pair_.mine->released, pair_.my_base + number);
  if (sleeps(peer_waiting())) [[unlikely]]
    wake_peer();
}

bool ShmEndpoint::read_peer(uint64_t address, void* place, uint64_t bytes, uint64_t word_at,
                            uint64_t* word) {
  if (!pair_.memory) return false;
  PeerMemory::Result result = pair_.memory->read(address, place, bytes, word_at, word);
  if (result == PeerMemory::Result::kGone)
    throw Error(Code::kPeerLost,
                fmt::format("reading {} bytes of the peer's memory: process {} is gone {}", bytes,
                            pair_.pid, link()),
                pair_.peer);
  return result == PeerMemory::Result::kDone;
}

// A link does this once, so a full fence is cheap enough. With it the peer need not go on polling:
// it reads this word only once (ShmPart::connected_by).
void ShmEndpoint::call_peer() {
  publish(pair_.mine->connected, pair_.my_base);
  if (sleeps(peer_waiting(), FullFence())) wake_peer();
}

// The peer stored these words before `waiting`, which has been observed.
void ShmEndpoint::wake_peer() {
  const PeerLines& lead = *pair_.their_lead;
  pair_.ropes->pull(pair_.pid, lead.bell_fd.load(std::memory_order_relaxed),
                    lead.bell_inode.load(std::memory_order_relaxed));
}

bool ShmEndpoint::something_new() const {
  if (wants_message_ && stamp_of(received_ + 1) == received_ + 1) return true;
  return wants_credit_ &&
         (released_by_peer() != peer_released_ || returned_by_peer() != buffers_.taken_back());
}

bool LinkSet::may_be_ready(Sleep* sleep) {
  auto any = [this] { return std::ranges::any_of(links, &ShmEndpoint::something_new); };
  if (!sleep) return any();
  mine->bell_fd.store(sleep->bell.fd(), std::memory_order_relaxed);
  mine->bell_inode.store(sleep->bell.inode(), std::memory_order_relaxed);
  fall_asleep(mine->waiting);
  return is_ready_after_all(any);
}

void LinkSet::end_wait() {
  if (mine->waiting.load(std::memory_order_relaxed) != 0)  // else the line stays in caches
    mine->waiting.store(0, std::memory_order_relaxed);
  for (ShmEndpoint* link : links) link->forget_wishes();
}

}  // namespace ringcoll::shm

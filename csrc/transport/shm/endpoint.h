// The link between two ranks of one host.
//
// Sending: each message has an entry in a ring in the sender's control memory. The sender stores
// the entry's stamp last, and the receiver polls it. The payload of a message lies
// - beside the entry, if it is very short, or if it is of at most inline_bytes and no buffer is
//   free;
// - in a buffer that becomes the receiver's (handed.h), if it is copied when it is sent;
// - in the sender's arena, if it is kept; only its offset is sent;
// - in memory that the sender's caller has lent, if the receiver can read it (shm/peer_memory.h).
//
// Receiving: the view points to where the payload lies. A payload that was lent is first copied
// as a whole from the sender's process.
//
// Releasing: the receiver counts up `released` in its control memory. The sender reads it when it
// has no credit left, or must know whether its arena is free again. Nobody waits for the release of
// a single copied message. So the receiver reports only every kLazyCredits-th of them, with all
// before it.
//
// Sleeping: a rank sleeps for all of its links at once. It stores how peers wake it up, sets
// `waiting`, polls the links once more, and sleeps. A peer stamps or releases, reads `waiting`, and
// rings the rank's bell. One of the two sees the other's store (sleep.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/faster_way.h"
#include "shm/bell.h"
#include "shm/peer_memory.h"
#include "transport/shm/handed.h"
#include "transport/shm/layout.h"

namespace ringcoll::shm {

class ShmEndpoint;

/// A shorter payload goes beside its entry, whose lines the receiver fetches anyway.
inline constexpr uint64_t kLeastHandedBytes = 128;

/// The links of the whole transport, or of a part. One thread sleeps for all of them.
struct LinkSet {
  /// As Transport::may_be_ready() and end_wait().
  bool may_be_ready(Sleep* sleep);
  void end_wait();

  PeerLines* mine = nullptr;  // the first unit of this rank
  std::vector<ShmEndpoint*> links;
};

/// Both ends of a pair as one side sees them: `mine` is written here, `theirs` is mapped read-only.
/// A number in the peer's unit that does not count from the peer's base belongs to another part.
/// That part had the unit before, or has it now.
struct Pair {
  Rank rank = 0;
  Rank peer = 0;
  uint64_t inline_bytes = 0;
  uint64_t stride = 0;
  PeerLines* mine = nullptr;
  const PeerLines* theirs = nullptr;
  std::byte* out_ring = nullptr;
  const std::byte* in_ring = nullptr;
  uint64_t my_base = 0;
  uint64_t their_base = 0;
  std::span<std::byte> my_buffers;  // to be handed over (handed.h), in the memory of each end
  std::span<std::byte> their_buffers;
  bool leads = false;                   // true at one of the two ends (HandedBuffers)
  std::span<const std::byte> extent;    // of the arena: what is kept lies here
  const SharedMemory* arena = nullptr;  // this rank's
  const SharedMemory* their_arena = nullptr;
  int pid = 0;                                  // of the peer
  const PeerMemory* memory = nullptr;           // of the peer; null: it cannot be read
  LinkSet* set = nullptr;                       // to which this link belongs
  const PeerLines* their_lead = nullptr;        // the first unit of the peer
  BellRopes* ropes = nullptr;                   // to the peer's bells
  std::function<void(uint64_t unread)> on_end;  // gets last_unread(); may be null
};

class ShmEndpoint final : public Endpoint, public HostLink {
 public:
  /// Adds this link to the set of `pair`; the destructor removes it.
  explicit ShmEndpoint(const Pair& pair);
  ~ShmEndpoint() override;

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t try_copy(const Envelope& envelope, std::span<const Slice> slices,
                    uint64_t bytes) override;
  uint64_t completed() override;
  bool try_peek(Envelope* envelope, uint64_t* bytes) override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool takes_lent() const override {
    return pair_.theirs->reads.load(std::memory_order_relaxed) == pair_.their_base + 1;
  }
  void revoke() noexcept override;
  bool reads_peer() const override { return pair_.memory != nullptr; }
  using HostLink::read_peer;
  bool read_peer(uint64_t address, void* place, uint64_t bytes, uint64_t word_at,
                 uint64_t* word) override;
  bool progress() override { return false; }  // no send is ever queued
  bool drained() override { return completed() == sent_; }
  /// Tells the peer that this end has connected (PeerLines::connected), and wakes it up.
  void call_peer();
  /// True if something that the caller looked for in vain is there now.
  bool something_new() const;
  void forget_wishes() { wants_message_ = wants_credit_ = false; }

  /// Number of the last kept message that the peer has not released; 0: it has released all.
  uint64_t last_unread() const;

 private:
  Entry* out_entry(uint64_t number) {
    return reinterpret_cast<Entry*>(pair_.out_ring + (number - 1) % kEntries * pair_.stride);
  }
  const Entry* in_entry(uint64_t number) const {
    return reinterpret_cast<const Entry*>(pair_.in_ring + (number - 1) % kEntries * pair_.stride);
  }
  uint64_t stamp_of(uint64_t number) const;
  uint64_t released_by_peer() const;
  uint64_t load_released();
  bool has_credit();
  bool has_buffer();
  uint64_t publish_entry(Entry& entry, const Envelope& envelope, uint64_t bytes, bool is_kept);
  static void put_beside(Entry& entry, std::span<const Slice> slices, uint64_t bytes);
  void put_in_buffer(Entry& entry, std::span<const Slice> slices, uint64_t bytes);
  void keep(Entry& entry, const void* data, uint64_t bytes);
  uint64_t returned_by_peer() const;
  const std::byte* in_arena(uint64_t number, uint64_t offset, uint64_t bytes) const;
  const std::byte* in_buffer(uint64_t number, uint64_t offset, uint64_t bytes);
  const std::byte* fetch(uint64_t address, void* place, uint64_t bytes);
  bool next_is_there();
  const std::atomic<uint32_t>& peer_waiting() const { return pair_.their_lead->waiting; }
  void wake_peer();
  std::string link() const;

  static constexpr int8_t kNoBuffer = -1;
  /// How a copied payload is stored. Which way is faster depends on the processor and the distance.
  enum Store : size_t { kThroughCaches, kPastCaches };
  const Pair pair_;
  HandedBuffers buffers_;
  FasterWay copies_;  // of Store
  uint64_t sent_ = 0;
  uint64_t completed_ = 0;
  bool kept_[kEntries] = {};    // by message that may be unreleased: it was not copied
  uint64_t peer_released_ = 0;  // as last read
  uint64_t received_ = 0;
  uint64_t released_ = 0;
  int8_t buffer_of_[kEntries] = {};  // by view: the number of its buffer, or kNoBuffer
  uint64_t told_ = 0;                // the last release that was reported to the peer
  std::vector<std::byte> fetched_;   // the copy of a lent payload if the caller offers no place
  // What the caller looked for in vain since its last wait. A message that the caller does not want
  // yet must not keep it from sleeping.
  bool wants_message_ = false;
  bool wants_credit_ = false;
};

}  // namespace ringcoll::shm

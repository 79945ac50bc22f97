// The link between two ranks of one host.
//
// Sending: the header, and a payload of up to inline_bytes, go into the next entry of a ring in the
// sender's control memory; the entry's stamp, stored last, says that it is there. A larger payload
// stays where it is in the sender's arena, and only its offset is sent; or in the memory of the
// sender's caller, if that is lent and the receiver can read it (shm/peer_memory.h). Receiving:
// look at the next stamp; the view points into the sender's arena, or to where what was lent has
// been copied, in one go from there. Releasing: count up `released` in the receiver's control
// memory; the sender reads it when it has used up its credit or must know whether its arena is free
// again. Nobody waits for the release of one small message, which has left the arena when it is
// sent: of those, only every kLazyCredits-th is told, with all before it.
// A message that is copied when it is sent goes into a buffer that becomes the receiver's
// (handed.h), or beside its entry if it is very short.
//
// Sleeping: a rank sleeps for all of its links at once. It says how peers wake it, sets `waiting`,
// looks at the links once more, and sleeps. A peer stamps or releases, looks at `waiting`, and
// rings the rank's bell. Why one of the two sees the other's word: sleep.h.
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

/// A shorter payload is best beside the flag, which is fetched anyway (measured between near cores
/// of a Xeon: 32 B 0.28 us there and 0.33 in a buffer, 128 B 0.36 and 0.35, 1 KiB 0.65 and 0.44).
inline constexpr uint64_t kLeastHandedBytes = 128;

/// The links of the whole or of a part, for which one thread sleeps.
struct LinkSet {
  /// Transport::stirs() and rested().
  bool stirs(Sleep* sleep);
  void rested();

  PeerLines* mine = nullptr;  // the first unit of this rank
  std::vector<ShmEndpoint*> links;
};

/// Both ends of a pair as one side sees them: `mine` is written here, `theirs` is mapped read-only.
/// Numbers in the peer's unit that do not belong to its base are of another part, which had that
/// unit before or has it now.
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
  std::span<std::byte> my_buffers;  // that are handed over, in the memory of each end
  std::span<std::byte> their_buffers;
  bool leads = false;                   // this end does
  std::span<const std::byte> extent;    // what is sent must lie in, of
  const SharedMemory* arena = nullptr;  // this rank's
  const SharedMemory* their_arena = nullptr;
  int pid = 0;                                  // of the peer
  const PeerMemory* memory = nullptr;           // of the peer; null: cannot be read
  LinkSet* set = nullptr;                       // this link's
  const PeerLines* their_lead = nullptr;        // the first unit of the peer
  BellRopes* ropes = nullptr;                   // to the peer's bells
  std::function<void(uint64_t unread)> on_end;  // told last_unread() then; null: nobody asks
};

class ShmEndpoint final : public Endpoint, public HostLink {
 public:
  /// One of its set's links while it lives.
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
  bool progress() override { return false; }  // nothing is ever queued
  bool drained() override { return completed() == sent_; }
  /// The peer may find itself called (PeerLines::connected).
  void call_peer();
  /// Whether there is what the caller has looked for in vain.
  bool something_new() const;
  void forget_wishes() { wants_message_ = wants_credit_ = false; }

  /// Number of the last message in the arena that the peer has not released; 0: it has all.
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
  /// How what is copied is stored: processors differ in which is faster, and so do distances.
  enum Store : size_t { kThroughCaches, kPastCaches };
  const Pair pair_;
  HandedBuffers buffers_;
  FasterWay copies_;  // of Store
  uint64_t sent_ = 0;
  uint64_t completed_ = 0;
  bool kept_[kEntries] = {};    // of the messages that may be unreleased: not copied
  uint64_t peer_released_ = 0;  // as last read
  uint64_t received_ = 0;
  uint64_t released_ = 0;
  int8_t buffer_of_[kEntries] = {};  // of a view: the number of the buffer it is in, or kNoBuffer
  uint64_t told_ = 0;                // the last of them that the peer knows of
  std::vector<std::byte> fetched_;   // of a view of what was lent that had no place of its own
  // What the caller looked for in vain since it rested last. A message that it does not want yet
  // must not keep it from sleeping.
  bool wants_message_ = false;
  bool wants_credit_ = false;
};

}  // namespace ringcoll::shm

// Ranks that are threads of one process. The receiver reads where the sender wrote, at the same
// address, and a mutex orders everything: so a thread sanitizer sees every access that the ranks
// make to one another's memory, which it cannot see when memory is mapped twice.
#include "transport/loopback/loopback.h"

#include <fmt/core.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/nonce.h"

namespace ringcoll {
namespace {

/// Messages of one direction that may be unreleased.
constexpr uint64_t kCredits = 32;

struct Message {
  Envelope envelope;
  uint64_t bytes = 0;
  const std::byte* borrowed = nullptr;  // in the sender's memory; null: the bytes are in `copy`
  std::vector<std::byte> copy;
};

/// One side of a pair: what it has sent, and how it sleeps. Guarded by Pair::mutex.
struct Side {
  std::array<Message, kCredits> outbox;  // message n at n modulo kCredits
  uint64_t sent = 0;
  uint64_t taken = 0;     // by the other side's try_recv
  uint64_t released = 0;  // by the other side
  bool closed = false;
  bool woken = false;
  uint64_t events = 0;  // things that happened to this side that it may wait for
  std::condition_variable changed;
};

struct Pair {
  std::mutex mutex;
  std::array<Side, 2> sides;
};

/// Of a transport, and of a part of one.
struct Address {
  uint32_t magic = 0x326c'6372;  // "rcl2"
  int32_t rank = 0;
  uint64_t nonce = 0;
};
static_assert(sizeof(Address) == 16 && sizeof(Address) <= kMaxPartAddressBytes);

/// Who is there, and the pairs that talk. Of the process, since ranks that are threads have nothing
/// else in common.
class Registry {
 public:
  static Registry& get() {
    static Registry registry;
    return registry;
  }

  void add(uint64_t nonce, Rank rank) {
    std::lock_guard lock(mutex_);
    ranks_[nonce] = rank;
  }
  /// A pair lives until both transports have gone: what one side sent before it closed can still be
  /// received by a side that comes later.
  void remove(uint64_t nonce) {
    std::lock_guard lock(mutex_);
    ranks_.erase(nonce);
    std::erase_if(pairs_, [&](const auto& item) {
      auto [low, high] = item.first;
      return !ranks_.contains(low) && !ranks_.contains(high);
    });
  }
  bool has(uint64_t nonce, Rank rank) {
    std::lock_guard lock(mutex_);
    auto found = ranks_.find(nonce);
    return found != ranks_.end() && found->second == rank;
  }
  /// The pair of two transports; made by whoever comes first.
  Pair& open(uint64_t mine, uint64_t theirs) {
    std::lock_guard lock(mutex_);
    auto& pair = pairs_[std::minmax(mine, theirs)];
    if (!pair) pair = std::make_unique<Pair>();
    return *pair;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Rank> ranks_;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<Pair>> pairs_;
};

class LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(Rank rank, Rank peer, uint64_t inline_bytes, uint64_t mine, uint64_t theirs)
      : rank_(rank),
        peer_(peer),
        inline_bytes_(inline_bytes),
        pair_(Registry::get().open(mine, theirs)),
        out_(pair_.sides[mine < theirs ? 0 : 1]),
        in_(pair_.sides[mine < theirs ? 1 : 0]) {}
  ~LoopbackEndpoint() override;

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t completed() override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override { return false; }  // nothing is ever queued
  void wait(Duration limit) override;
  void wake() override;

 private:
  void looked_in_vain() {
    if (!std::exchange(looked_, true)) seen_events_ = out_.events;
  }
  static void notify(Side& side) {
    side.events++;
    side.changed.notify_all();
  }
  Error peer_lost() const {
    return Error(
        Code::kPeerLost,
        fmt::format("rank {} closed the link [rank {} -> {}, loopback]", peer_, rank_, peer_),
        peer_);
  }

  const Rank rank_;
  const Rank peer_;
  const uint64_t inline_bytes_;
  Pair& pair_;
  Side& out_;  // this side
  Side& in_;   // the other
  uint64_t completed_ = 0;
  // Events of this side when the caller first looked for something in vain since the last wait().
  uint64_t seen_events_ = 0;
  bool looked_ = false;
};

// The receiver may be reading a view of memory that the caller is about to free, so it is given a
// moment to release it; after that its rank has failed and does not read it any more.
LoopbackEndpoint::~LoopbackEndpoint() {
  constexpr auto kGrace = std::chrono::milliseconds(200);
  std::unique_lock lock(pair_.mutex);
  out_.closed = true;
  // What is not taken yet and lies in memory of the caller is never delivered; what was copied is.
  for (uint64_t n = out_.taken + 1; n <= out_.sent; n++)
    if (out_.outbox[n % kCredits].borrowed) {
      out_.sent = n - 1;
      break;
    }
  notify(in_);
  auto read = [&] {
    for (uint64_t n = out_.released + 1; n <= out_.taken; n++)
      if (out_.outbox[n % kCredits].borrowed) return false;
    return true;
  };
  out_.changed.wait_for(lock, kGrace, [&] { return in_.closed || read(); });
}

uint64_t LoopbackEndpoint::try_send(const Envelope& envelope, const void* data, uint64_t bytes) {
  std::lock_guard lock(pair_.mutex);
  if (in_.closed) throw peer_lost();
  if (out_.sent - out_.released >= kCredits) {
    looked_in_vain();
    return 0;
  }
  uint64_t number = ++out_.sent;
  Message& message = out_.outbox[number % kCredits];
  message.envelope = envelope;
  message.bytes = bytes;
  auto* from = static_cast<const std::byte*>(data);
  message.borrowed = bytes > inline_bytes_ ? from : nullptr;
  // At least one byte, so that an empty message has an address too.
  message.copy.resize(inline_bytes_ + 1);
  if (!message.borrowed && bytes > 0) std::memcpy(message.copy.data(), from, bytes);
  notify(in_);
  return number;
}

uint64_t LoopbackEndpoint::completed() {
  std::lock_guard lock(pair_.mutex);
  uint64_t before = completed_;
  auto left = [&](uint64_t n) { return n <= out_.released || !out_.outbox[n % kCredits].borrowed; };
  while (completed_ < out_.sent && left(completed_ + 1)) completed_++;
  if (completed_ == before && completed_ < out_.sent) {
    if (in_.closed) throw peer_lost();
    looked_in_vain();
  }
  return completed_;
}

bool LoopbackEndpoint::try_recv(void* /*place*/, uint64_t capacity, View* view) {
  std::lock_guard lock(pair_.mutex);
  if (in_.taken == in_.sent) {
    if (in_.closed) throw peer_lost();
    looked_in_vain();
    return false;
  }
  Message& message = in_.outbox[++in_.taken % kCredits];
  view->data = message.borrowed ? message.borrowed : message.copy.data();
  if (message.bytes > capacity) view->data = nullptr;
  view->bytes = message.bytes;
  view->envelope = message.envelope;
  return true;
}

void LoopbackEndpoint::release() {
  std::lock_guard lock(pair_.mutex);
  invariant(in_.released < in_.taken, "release() without a view [rank {} -> {}, loopback]", peer_,
            rank_);
  in_.released++;
  notify(in_);
}

void LoopbackEndpoint::wait(Duration limit) {
  std::unique_lock lock(pair_.mutex);
  out_.changed.wait_for(lock, limit, [&] { return out_.woken || out_.events != seen_events_; });
  out_.woken = false;
  seen_events_ = out_.events;
  looked_ = false;
}

void LoopbackEndpoint::wake() {
  std::lock_guard lock(pair_.mutex);
  out_.woken = true;
  out_.changed.notify_all();
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(Rank rank, size_t size, uint64_t inline_bytes, bool is_part)
      : rank_(rank),
        inline_bytes_(inline_bytes),
        is_part_(is_part),
        nonce_(random_nonce()),
        peers_(size) {
    Registry::get().add(nonce_, rank_);
  }
  ~LoopbackTransport() override { Registry::get().remove(nonce_); }

  std::string address() const override {
    Address address{.rank = rank_, .nonce = nonce_};
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  }

  std::string reach(Rank peer, std::string_view text) override {
    Address theirs;
    if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
    std::memcpy(&theirs, text.data(), sizeof theirs);
    if (theirs.magic != Address().magic)
      return "its address is not one of this version of ringcoll";
    if (theirs.rank != peer) return fmt::format("it is rank {} and not rank {}", theirs.rank, peer);
    // A member of a part is in this process, as the whole has found, but may have left the part.
    if (!is_part_ && !Registry::get().has(theirs.nonce, peer)) return "other process";
    peers_[static_cast<size_t>(peer)] = theirs.nonce;
    return "";
  }

  std::unique_ptr<Endpoint> connect(Rank peer, Deadline /*deadline*/) override {
    uint64_t theirs = peers_.at(static_cast<size_t>(peer));
    invariant(theirs != 0, "loopback: rank {} is to be connected unreached", peer);
    return std::make_unique<LoopbackEndpoint>(rank_, peer, inline_bytes_, nonce_, theirs);
  }

  // With a nonce of its own, it is a transport like any other.
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<LoopbackTransport>(part.rank, part.members.size(), inline_bytes_, true);
  }

 private:
  const Rank rank_;
  const uint64_t inline_bytes_;
  const bool is_part_;
  const uint64_t nonce_;
  std::vector<uint64_t> peers_;
};

}  // namespace

Probe probe_loopback(const Config&) { return {true, "threads of one process need nothing"}; }

std::unique_ptr<Transport> make_loopback(const TransportOptions& options) {
  return std::make_unique<LoopbackTransport>(options.rank, static_cast<size_t>(options.size),
                                             static_cast<uint64_t>(options.config.inline_bytes),
                                             false);
}

}  // namespace ringcoll

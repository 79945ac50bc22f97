// Ranks that are threads of one process. The receiver reads where the sender wrote, at the same
// address, and a mutex orders everything. So ThreadSanitizer sees every access of ranks to one
// another's memory. It cannot see that when memory is mapped twice.
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
#include "base/nonce.h"
#include "shm/bell.h"

namespace ringcoll {
namespace {

/// Messages of one direction that may be unreleased.
constexpr uint64_t kCredits = 32;
static_assert(kCredits >= kLeastCredits);

struct Message {
  Envelope envelope;
  uint64_t bytes = 0;
  const std::byte* borrowed = nullptr;  // in the sender's memory; null: the bytes are in `copy`
  std::vector<std::byte> copy;
};

/// One side of a pair: the messages that it has sent, and how it waits. Guarded by Pair::mutex.
struct Side {
  std::array<Message, kCredits> outbox;  // message n at n modulo kCredits
  uint64_t sent = 0;
  uint64_t taken = 0;     // by the other side's try_recv
  uint64_t released = 0;  // by the other side
  bool closed = false;
  const Bell* bell = nullptr;       // while its owner sleeps on it
  uint64_t events = 0;              // number of events that this side may wait for
  std::condition_variable changed;  // for its destructor
};

struct Pair {
  std::mutex mutex;
  std::array<Side, 2> sides;

  static void notify(Side& side) {
    side.events++;
    side.changed.notify_all();
    if (side.bell) side.bell->ring();
  }
};

/// The address of a transport, and of a part of one.
struct LoopbackAddress {
  uint32_t magic = 0x326c'6372;  // "rcl2"
  int32_t rank = 0;
  uint64_t nonce = 0;
};
static_assert(sizeof(LoopbackAddress) == 16 && sizeof(LoopbackAddress) <= kMaxPartAddressBytes);

/// The ranks of this process, and the pairs that talk. A global object, since ranks that are
/// threads have nothing else in common.
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
  /// Removes pairs of which both transports have gone. Until then, a side that comes later can
  /// still receive what the other sent before it closed.
  void remove(uint64_t nonce) {
    std::lock_guard lock(mutex_);
    ranks_.erase(nonce);
    asleep_.erase(nonce);
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
  /// The pair of two transports. The first one that asks makes it, and rings the bell of the other
  /// if that sleeps.
  Pair& open(uint64_t mine, uint64_t theirs) {
    std::lock_guard lock(mutex_);
    auto& pair = pairs_[std::minmax(mine, theirs)];
    if (pair) return *pair;
    pair = std::make_unique<Pair>();
    auto sleeper = asleep_.find(theirs);
    if (sleeper != asleep_.end()) sleeper->second->ring();
    return *pair;
  }
  bool has_pair(uint64_t mine, uint64_t theirs) {
    std::lock_guard lock(mutex_);
    return pairs_.contains(std::minmax(mine, theirs));
  }
  /// From now on, a peer that makes a pair with this transport rings `bell`; null: no more.
  void set_asleep(uint64_t nonce, const Bell* bell) {
    std::lock_guard lock(mutex_);
    if (bell)
      asleep_[nonce] = bell;
    else
      asleep_.erase(nonce);
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Rank> ranks_;
  std::map<uint64_t, const Bell*> asleep_;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<Pair>> pairs_;
};

class LoopbackEndpoint final : public Endpoint {
 public:
  using All = std::vector<LoopbackEndpoint*>;

  /// Is one of `all` while it lives.
  LoopbackEndpoint(Rank rank, Rank peer, uint64_t inline_bytes, uint64_t mine, uint64_t theirs,
                   All& all)
      : rank_(rank),
        peer_(peer),
        inline_bytes_(inline_bytes),
        pair_(Registry::get().open(mine, theirs)),
        out_(pair_.sides[mine < theirs ? 0 : 1]),
        in_(pair_.sides[mine < theirs ? 1 : 0]),
        all_(all) {
    all_.push_back(this);
  }
  ~LoopbackEndpoint() override;

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t completed() override;
  bool try_peek(Envelope* envelope, uint64_t* bytes) override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override { return false; }  // nothing is ever queued
  /// As Transport::may_be_ready() and end_wait(); a null bell: no sleep.
  bool may_be_ready(const Bell* bell);
  void end_wait();

 private:
  bool next_is_there();
  void looked_in_vain() {
    if (!std::exchange(looked_, true)) seen_events_ = out_.events;
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
  All& all_;
  uint64_t completed_ = 0;
  // Events of this side when the caller first looked for something in vain since end_wait().
  uint64_t seen_events_ = 0;
  bool looked_ = false;
};

// The receiver may be reading a view of memory that the caller is about to free, so it gets a
// moment to release it. A rank that has not released it by then has failed, and does not read it
// any more.
LoopbackEndpoint::~LoopbackEndpoint() {
  std::erase(all_, this);
  constexpr auto kGrace = std::chrono::milliseconds(200);
  std::unique_lock lock(pair_.mutex);
  out_.closed = true;
  // The first message that is not taken yet and lies in the caller's memory is not delivered, nor
  // are those behind it. Copied messages before it are.
  for (uint64_t n = out_.taken + 1; n <= out_.sent; n++)
    if (out_.outbox[n % kCredits].borrowed) {
      out_.sent = n - 1;
      break;
    }
  Pair::notify(in_);
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
  // At least one byte, so that an empty message has an address, too.
  message.copy.resize(inline_bytes_ + 1);
  if (!message.borrowed && bytes > 0) std::memcpy(message.copy.data(), from, bytes);
  Pair::notify(in_);
  return number;
}

uint64_t LoopbackEndpoint::completed() {
  std::lock_guard lock(pair_.mutex);
  uint64_t before = completed_;
  auto left = [&](uint64_t n) { return n <= out_.released || !out_.outbox[n % kCredits].borrowed; };
  while (completed_ < out_.sent && left(completed_ + 1)) completed_++;
  if (completed_ == before && completed_ < out_.sent && in_.closed) throw peer_lost();
  if (completed_ < out_.sent) looked_in_vain();
  return completed_;
}

// Precondition: the lock is held.
bool LoopbackEndpoint::next_is_there() {
  if (in_.taken < in_.sent) return true;
  if (in_.closed) throw peer_lost();
  looked_in_vain();
  return false;
}

bool LoopbackEndpoint::try_peek(Envelope* envelope, uint64_t* bytes) {
  std::lock_guard lock(pair_.mutex);
  if (!next_is_there()) return false;
  const Message& message = in_.outbox[(in_.taken + 1) % kCredits];
  *envelope = message.envelope;
  *bytes = message.bytes;
  return true;
}

bool LoopbackEndpoint::try_recv(void* /*place*/, uint64_t capacity, View* view) {
  std::lock_guard lock(pair_.mutex);
  if (!next_is_there()) return false;
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
  Pair::notify(in_);
}

bool LoopbackEndpoint::may_be_ready(const Bell* bell) {
  std::lock_guard lock(pair_.mutex);
  out_.bell = bell;
  return looked_ && out_.events != seen_events_;
}

void LoopbackEndpoint::end_wait() {
  std::lock_guard lock(pair_.mutex);
  out_.bell = nullptr;
  looked_ = false;
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
    LoopbackAddress address{.rank = rank_, .nonce = nonce_};
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  }

  std::string reach(Rank peer, std::string_view text) override {
    LoopbackAddress theirs;
    if (text.size() != sizeof theirs) return "its address is not one of this version of ringcoll";
    std::memcpy(&theirs, text.data(), sizeof theirs);
    if (theirs.magic != LoopbackAddress().magic)
      return "its address is not one of this version of ringcoll";
    if (theirs.rank != peer) return fmt::format("it is rank {} and not rank {}", theirs.rank, peer);
    // A member of a part is in this process, as the whole has found. It may have ended its part.
    if (!is_part_ && !Registry::get().has(theirs.nonce, peer)) return "other process";
    peers_[static_cast<size_t>(peer)] = theirs.nonce;
    return "";
  }

  std::unique_ptr<Endpoint> connect(Rank peer, std::vector<Fd> /*sockets*/,
                                    Deadline /*deadline*/) override {
    uint64_t theirs = peers_.at(static_cast<size_t>(peer));
    invariant(theirs != 0, "loopback: rank {} is to be connected unreached", peer);
    return std::make_unique<LoopbackEndpoint>(rank_, peer, inline_bytes_, nonce_, theirs,
                                              endpoints_);
  }
  bool sends_from_anywhere() const override { return true; }

  // A part has a nonce of its own, and so is a transport like any other.
  std::unique_ptr<Transport> part(const TransportPart& part) override {
    return std::make_unique<LoopbackTransport>(part.rank, part.members.size(), inline_bytes_, true);
  }

  bool connected_by(Rank peer) override {
    return Registry::get().has_pair(nonce_, peers_.at(static_cast<size_t>(peer)));
  }
  bool may_be_ready(Sleep* sleep) override;
  void end_wait() override;

 private:
  const Rank rank_;
  const uint64_t inline_bytes_;
  const bool is_part_;
  const uint64_t nonce_;
  std::vector<uint64_t> peers_;
  LoopbackEndpoint::All endpoints_;
};

// A peer that connects from now on rings. The caller itself looks for a peer that has connected
// before.
bool LoopbackTransport::may_be_ready(Sleep* sleep) {
  const Bell* bell = sleep ? &sleep->bell : nullptr;
  if (bell) Registry::get().set_asleep(nonce_, bell);
  bool any = false;
  for (LoopbackEndpoint* endpoint : endpoints_) any |= endpoint->may_be_ready(bell);
  return any;
}

void LoopbackTransport::end_wait() {
  Registry::get().set_asleep(nonce_, nullptr);
  for (LoopbackEndpoint* endpoint : endpoints_) endpoint->end_wait();
}

}  // namespace

Probe probe_loopback(const Config&) { return {true, "threads of one process need nothing"}; }

std::unique_ptr<Transport> make_loopback(const TransportOptions& options) {
  return std::make_unique<LoopbackTransport>(options.rank, static_cast<size_t>(options.size),
                                             static_cast<uint64_t>(options.config.inline_bytes),
                                             false);
}

}  // namespace ringcoll

// One connection to another agent: it connects, proves the key, and then sends and receives frames.
// It never blocks: an event loop calls it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "connect/auth.h"
#include "net/address.h"
#include "net/event_loop.h"
#include "remote/carrier.h"
#include "remote/frames.h"

namespace ringcoll::remote {

enum class LinkEnd : uint8_t {
  kGoodbye,  // the peer left on purpose, or this end closed the link
  kLost,     // the connection broke, or the peer broke the protocol
  kSilent,   // the peer has not answered for a while: it is stopped, or cut off
  // No link was made, the best news first:
  kAbsent,  // nobody listens at any of the addresses: the process has ended
  kClosed,  // the connection is closed at once, each time: it is no agent, or has too many guests
  kUnreached,  // no answer
  kForbidden,  // the key is wrong, or the peer admits nobody under this name
};

/// Where the body of an incoming frame goes. Empty `data`: it is dropped.
struct Place {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;  // keeps the memory; identifies the batch for abandon()
};

class Link final : public Carrier, public std::enable_shared_from_this<Link> {
 public:
  /// What a link tells. All calls come on the loop's thread.
  class Listener {
   public:
    virtual ~Listener() = default;
    /// The body of a kData or kWrite begins to arrive. Called with the link's lock: must not call
    /// the link.
    virtual Place place_for(Link& link, const FrameHead& head) = 0;
    /// A frame is complete. `body` is that of kinds that have one and no place.
    virtual void take(Link& link, const FrameHead& head, std::string body) = 0;
    /// Both ends have proven the key; frames may be sent.
    virtual void made(Link& link) = 0;
    /// The last call. `why` says more, but for kGoodbye and kSilent.
    virtual void ended(Link& link, LinkEnd end, const std::string& why) = 0;
  };

  /// A link that this end makes: connects to the addresses in turn. `listener` and `loop` outlive
  /// the link; the link lives at least until `ended`.
  static std::shared_ptr<Link> dial(EventLoop& loop, Listener& listener,
                                    std::vector<Address> addresses, std::string key, GroupId group,
                                    Duration patience, bool for_messages);
  /// A link over an accepted connection that has proven the key.
  static std::shared_ptr<Link> accepted(EventLoop& loop, Listener& listener, Fd fd);
  ~Link() override;

  /// Any thread. Sends a frame, and returns false if the link has ended. `wanted`, if given, is
  /// asked with the link's lock, and nothing is sent if it returns false.
  bool send(FrameHead head, std::string body = {});
  bool send(FrameHead head, const std::byte* body, std::shared_ptr<void> owner,
            const std::function<bool()>& wanted = {});
  /// Any thread. Once this has returned, the link neither reads nor writes memory of `owner`.
  /// Bodies on the way to it are dropped. If part of a body has been sent already, the link is
  /// ended.
  void abandon(const void* owner) override;
  /// Any thread. Ends the link; `ended` comes later on the loop's thread.
  void end(LinkEnd how, std::string why = {});
  /// Any thread. Says goodbye and ends the link once all is sent, or at once if it is stuck.
  void leave();

  /// When bytes last arrived. Any thread.
  Clock::time_point heard() const override { return heard_.load(std::memory_order_relaxed); }
  /// This process was stopped for so long. The loop's thread.
  void excuse(Duration lag) { heard_.store(excused(heard(), lag), std::memory_order_relaxed); }
  /// Bytes that wait to be sent. Any thread.
  uint64_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  /// Whether this end made it.
  bool dialled() const { return !addresses_.empty(); }

  // Carrier.
  int suits(const RegionHandle&, bool notice) const override { return notice || for_payload; }
  uint64_t window_bytes() const override;
  void ask(const Request& request, const std::function<bool()>& wanted) override;
  void ping() override { send({.kind = FrameKind::kPing}); }
  const std::string& peer_text() const override { return peer_text_; }
  Way way() const override { return Way::kTcp; }

  // For the listener alone, on the loop's thread; `agent` is set once the peer has said hello.
  bool for_payload = true;    // false: for notices alone; payload goes by RDMA
  bool for_messages = false;  // and not for payload
  uint64_t number = 0;        // of a link for messages

 private:
  enum class Stage : uint8_t { kConnecting, kProving, kOpen, kEnded };
  struct Outgoing {
    FrameHead head;
    std::string text;
    const std::byte* body = nullptr;
    std::shared_ptr<void> owner;
    uint64_t sent = 0;  // of head and body
    uint64_t bytes() const;
  };

  Link(EventLoop& loop, Listener& listener) : loop_(loop), listener_(listener) {}
  void watch(bool writable);
  void begin_connect();
  void try_next(LinkEnd end, const std::string& why);
  void connect_later(Duration pause);
  void ready(uint32_t events);
  void end_connect();
  void prove();
  void receive(std::unique_lock<std::mutex>& lock);
  std::span<std::byte> next_room(std::span<std::byte> dropped);
  bool receive_some(std::unique_lock<std::mutex>& lock);
  bool take_head();
  void take_frame(std::unique_lock<std::mutex>& lock);
  bool flush();
  void finish();

  EventLoop& loop_;
  Listener& listener_;
  std::mutex mutex_;
  Stage stage_ = Stage::kConnecting;
  Fd fd_;
  std::string peer_text_;
  std::atomic<Clock::time_point> heard_ = Clock::now();
  std::atomic<uint64_t> queued_bytes_ = 0;

  // While it is being made.
  std::vector<Address> addresses_;
  size_t next_address_ = 0;
  std::string causes_;
  LinkEnd worst_ = LinkEnd::kAbsent;  // of the addresses tried so far
  std::string key_;
  GroupId group_{};
  Duration patience_{};
  uint64_t attempt_ = 0;
  int times_closed_ = 0;  // by the peer at this address
  std::optional<Prover> prover_;
  std::string proof_;  // what has arrived of the next message of the proof

  // Sending.
  std::deque<Outgoing> queue_;
  bool waits_writable_ = false;
  bool leaving_ = false;

  // Receiving.
  FrameHead head_;
  size_t head_filled_ = 0;
  Place place_;
  std::string text_;
  uint64_t body_filled_ = 0;
  uint64_t turn_bytes_ = 0;  // received since the loop called

  LinkEnd end_ = LinkEnd::kLost;
  std::string why_;
  bool finished_ = false;
};

}  // namespace ringcoll::remote

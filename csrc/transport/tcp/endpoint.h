// The link between two ranks over one or more TCP streams. A long message is cut into stretches. A
// stream takes the next one when it has room, so no stream waits for another, and none has a fixed
// share. A short message goes whole, on stream 0.
//
// Every message begins on stream 0, and is cut to its end before the next one begins there. So on
// each stream stretches come in the order of messages. The receiver reads stream 0 for the next
// message. Then it reads those streams that may have stretches of it, each until it holds one of a
// later message.
//
// Sending: header and payload go from where they are to the kernel. What the kernel does not take
// at once is kept as a pointer until it does. A message has left when the kernel has all of it.
// Receiving: the payload stays in the kernel's buffers, which are the pipeline, until the caller
// asks for it. Then it goes straight to its place.
#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/faster_way.h"
#include "base/fd.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

namespace ringcoll::tcp {

class TcpEndpoint;

/// The endpoints of one transport. One thread at a time uses them.
using Endpoints = std::vector<TcpEndpoint*>;

/// A longer message is cut into stretches of so many bytes. If it were less, headers and system
/// calls would count. If it were more, some streams would run dry at the end of a message while one
/// has much left.
inline constexpr uint64_t kStretchBytes = 512 << 10;

/// How many of a link's streams carry long messages: 1, 2, 4 … up to `most`.
std::vector<size_t> numbers_of_streams(size_t most);
/// Finds out on the link which of the numbers is fastest; there are `numbers` of them. A larger
/// number must be faster by a tenth, since more streams cost memory and a share of other traffic.
FasterWay fastest_of(size_t numbers);

class TcpEndpoint final : public Endpoint {
 public:
  /// Sends a long message over as many of the sockets as one of `numbers` says, the fastest. A
  /// header that announces more than `most_bytes` is corrupt.
  TcpEndpoint(Rank rank, Rank peer, std::vector<Fd> sockets, std::vector<size_t> numbers,
              size_t read_ahead_bytes, uint64_t most_bytes, Endpoints& all);
  ~TcpEndpoint() override;

  uint64_t try_send(const Envelope& envelope, const void* data, uint64_t bytes) override;
  uint64_t completed() override;
  bool try_peek(Envelope* envelope, uint64_t* bytes) override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override;
  bool busy() const override;
  void revoke() noexcept override;
  /// Transport::may_be_ready() and end_wait(), for this link.
  bool may_be_ready(std::vector<pollfd>* sleep);
  void end_wait() { wants_message_ = false; }

 private:
  /// Messages that may be queued while the kernel's buffers are full. More would not make a full
  /// stream faster.
  static constexpr uint64_t kQueue = 64;
  static_assert(kQueue >= kLeastCredits);
  /// Stretches that the kernel gets in one system call. More gain nothing: 16 small ones fill a
  /// segment, a long one fills the socket.
  static constexpr size_t kBatch = 16;
  /// Bytes of one measurement of the link.
  static constexpr uint64_t kMeasuredBytes = 4 << 20;

  struct Outgoing {
    Header header;  // of its next stretch
    const std::byte* data = nullptr;
    bool begun = false;   // its first stretch is on stream 0
    uint32_t frames = 0;  // stretches that were cut and that the kernel does not have yet
    bool cut() const { return begun && header.offset == header.bytes; }
  };
  struct Frame {
    Header header;
    const std::byte* data = nullptr;
  };
  struct Flow {
    Stream stream;
    // Out: stretches of which the kernel does not have all.
    std::array<Frame, kBatch> frames;  // a ring
    size_t first = 0;
    size_t count = 0;
    uint64_t sent_of_first = 0;  // header included
    uint64_t waiting_bytes = 0;  // payload of all of them
    // In: the stretch that arrives.
    Header header;
    uint64_t header_got = 0;
    bool begun = false;  // claimed_ contains it
    uint64_t payload_got = 0;

    bool in_a_stretch() const { return header_got > 0; }
    Frame& frame(size_t i) { return frames[(first + i) % kBatch]; }
  };
  using Buffer = std::vector<std::byte>;

  Outgoing& outgoing(uint64_t number) { return queue_[number % kQueue]; }
  void take_stretches(size_t k);
  bool flush(size_t k);
  void drop_sent_frames(Flow& flow, uint64_t taken);
  bool flush_all();
  void measure(uint64_t bytes, Duration busy);
  void begin_to_count(bool is_long);
  uint64_t unacknowledged() const;
  void count_completed();
  bool read_header(size_t k);
  void check_header(size_t k) const;
  bool begin_message(std::byte* place, uint64_t capacity);
  void begin_stretch(size_t k);
  bool read_stretches(size_t k);
  bool read_message();
  void fail_if_ended() const;
  bool holds_a_later_message(const Flow& flow) const;
  bool waits_for_more(std::vector<pollfd>* fds);
  void add_writable(std::vector<pollfd>* fds);
  std::byte* own_buffer(uint64_t bytes);
  [[noreturn]] void corrupt(size_t k, const std::string& what) const;

  const Rank rank_;
  const Rank peer_;
  const uint64_t most_bytes_;
  Endpoints& all_;
  std::vector<Flow> flows_;
  const std::vector<size_t> numbers_;
  FasterWay faster_;                    // of numbers_
  std::array<Outgoing, kQueue> queue_;  // message n at n modulo kQueue
  uint64_t sent_ = 0;                   // taken by try_send
  uint64_t cutting_ = 1;                // the first message that is not cut to its end
  uint64_t completed_ = 0;
  uint64_t bytes_sent_ = 0;
  // Since when the link has been busy without a pause, and what the peer had then.
  bool counting_ = false;
  Clock::time_point busy_since_;
  uint64_t delivered_ = 0;
  uint64_t measured_bytes_ = 0;  // since faster_ was told
  Duration measured_time_{};
  uint64_t revoked_ = 0;  // sent_ when revoke() dropped messages; 0: none dropped
  // The message that arrives, number received_ + 1.
  uint64_t received_ = 0;
  bool known_ = false;  // its header has come
  Header message_;
  std::byte* place_ = nullptr;  // where its payload goes; null: dropped
  uint64_t claimed_ = 0;        // bytes of the stretches that have begun to arrive
  uint64_t arrived_ = 0;        // bytes that have arrived
  // A payload goes to a buffer if the caller offers no place. The buffer is kept for later
  // messages.
  Buffer arriving_;
  std::deque<Buffer>
      views_;  // of the views not released, in order; empty if the caller gave a place
  std::vector<Buffer> spare_;
  // The caller looked for a message in vain since end_wait(). One that it does not want yet must
  // not keep it from sleeping.
  bool wants_message_ = false;
  bool told_of_end_ = false;  // may_be_ready() has reported the end
};

}  // namespace ringcoll::tcp

// The link between two ranks over one or more TCP streams: message i travels on stream i modulo
// streams, whole, so both sides know where to look and nothing is put in order again.
//
// Sending: header and payload go from where they are to the kernel; what the kernel does not take
// at once is kept as a pointer until it does. A message has left when the kernel has all of it.
// Receiving: the payload stays in the kernel's buffers, which are the pipeline, until somebody asks
// for it, and then goes straight to its place.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/tcp/stream.h"
#include "transport/tcp/wire.h"
#include "transport/transport.h"

namespace ringcoll::tcp {

class TcpEndpoint;

/// The endpoints of one transport. A wait for one of them moves the queued sends of the others as
/// well: the peer that is waited for may itself wait for those.
using Endpoints = std::vector<TcpEndpoint*>;

class TcpEndpoint final : public Endpoint {
 public:
  /// A header that announces more than `most_bytes` is corrupt.
  TcpEndpoint(Rank rank, Rank peer, std::vector<Fd> sockets, size_t read_ahead_bytes,
              uint64_t most_bytes, Endpoints& all);
  ~TcpEndpoint() override;

  bool try_send(const Signature& signature, const void* data, uint64_t bytes) override;
  uint64_t completed() override;
  bool try_recv(void* place, uint64_t capacity, View* view) override;
  void release() override;
  bool progress() override;
  bool busy() const override;
  void wait(Duration limit) override;
  void wake() override;

 private:
  /// Messages that may be queued because the kernel's buffers are full. More would not make the
  /// stream any faster, it is full.
  static constexpr uint64_t kQueue = 64;

  struct Outgoing {
    Header header;
    const std::byte* data = nullptr;
  };
  /// A stream, and how far the messages on it have come in each direction.
  struct Lane {
    Stream stream;
    uint64_t next;              // first message of this lane that the kernel does not have entirely
    uint64_t sent_of_next = 0;  // bytes of it that the kernel has, header included
    Header header;              // of the message that arrives
    uint64_t header_got = 0;
    uint64_t payload_got = 0;
    std::byte* place = nullptr;  // where its payload goes; null: dropped
  };
  using Buffer = std::vector<std::byte>;

  Lane& lane_of(uint64_t number) { return lanes_[(number - 1) % lanes_.size()]; }
  bool queued(const Lane& lane) const { return lane.next <= sent_; }
  bool flush(Lane& lane);
  bool flush_all();
  bool read_header(Lane& lane, std::byte* place, uint64_t capacity);
  bool read_payload(Lane& lane);
  std::byte* own_buffer(uint64_t bytes);

  const Rank rank_;
  const Rank peer_;
  const uint64_t most_bytes_;
  Endpoints& all_;
  Fd wake_;
  std::vector<Lane> lanes_;
  std::array<Outgoing, kQueue> queue_;  // message n at n modulo kQueue
  uint64_t sent_ = 0;                   // taken by try_send
  uint64_t completed_ = 0;
  uint64_t received_ = 0;
  // A payload for which the caller offers no place goes to a buffer that is kept for the next.
  Buffer arriving_;
  std::deque<Buffer> views_;  // of the views that are out, in order; empty for those with a place
  std::vector<Buffer> spare_;
  // What the caller looked for in vain since the last wait(), hence what wait() waits for. A
  // message that it does not want yet must not keep a wait for credit from sleeping.
  bool wants_message_ = false;
  bool wants_credit_ = false;
};

}  // namespace ringcoll::tcp

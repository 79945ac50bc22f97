// A reliable connected queue pair: its states, and posting to it.
//
//   RESET --to_init--> INIT --to_ready_to_receive--> RTR --to_ready_to_send--> RTS
//   any of them --to_error--> ERROR
//
// Both ends go to INIT, exchange number, PSN and address, then go on. Receives may be posted from
// INIT on, and should be, so that each write with immediate of the peer finds one. The peer's
// writes arrive from RTR on. In ERROR every work request completes as flushed, in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "verbs/handles.h"

struct ibv_qp;

namespace ringcoll::verbs {

/// An address of a port in network byte order, as verbs have it.
struct Gid {
  std::array<uint8_t, 16> bytes{};

  bool operator==(const Gid&) const = default;
  bool empty() const { return *this == Gid{}; }
  /// An IPv4 address in IPv6 form, ::ffff:10.0.0.1, as RoCE v2 over IPv4 has it.
  bool is_ipv4() const;
  bool is_link_local() const;
  /// The subnet of an InfiniBand port: the first 8 bytes.
  uint64_t subnet_prefix() const;
  /// "10.0.0.1" for an IPv4 one, else "fe80::1".
  std::string text() const;
};

/// What to allocate. A device may give more; QueuePair::limits() says what it gave.
struct QueuePairLimits {
  uint32_t send_requests = 128;     // posted and not yet seen completed
  uint32_t receive_requests = 128;  // posted and not yet seen completed
  uint32_t send_pieces = 1;         // in one gather list
  uint32_t receive_pieces = 0;      // a write with immediate puts no data in a receive
  uint32_t inline_bytes = 0;        // copied by the post, so that the memory is free at once
};

/// Everything that the two ends agree on, and how long to try.
struct Connection {
  uint8_t port = 1;
  Access peer_may = Access::kRemoteWrite;  // with this rank's registered memory
  uint16_t partition_index = 0;

  uint32_t remote_qp_num = 0;
  uint32_t local_psn = 0;  // 24 bits, random: packets of an earlier pair of this number are dropped
  uint32_t remote_psn = 0;         // the peer's local_psn
  uint32_t path_mtu_bytes = 1024;  // the smaller of both ports' active MTU
  bool global_route = true;        // address by GID: RoCE always, InfiniBand across subnets
  uint8_t gid_index = 0;           // of this port, if global_route
  Gid remote_gid;                  // if global_route
  uint16_t remote_lid = 0;         // InfiniBand
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;  // RoCE v2: DSCP in the upper six bits
  uint8_t hop_limit = 64;     // 1 would keep RoCE v2 from being routed
  uint32_t flow_label = 0;

  uint8_t timeout_exponent = 17;           // RINGCOLL_QP_TIMEOUT; 0: wait for ever
  uint8_t retries = 6;                     // RINGCOLL_QP_RETRIES
  uint8_t receiver_not_ready_retries = 7;  // 7: without end
  uint8_t receiver_not_ready_timer = 12;  // pause of the peer before it retries: code 12 is 0.64 ms
  // Reads that each end may have outstanding at the other. More may be posted; they wait.
  uint8_t reads_in_flight = 1;
};

/// The shortest time after which a device gives up on a peer that does not answer: (retries + 1)
/// timeouts of 4.096 us * 2^exponent. A device may take up to 4 times as long for each (InfiniBand
/// specification, volume 1, 9.7.6.1.3). 0 if it never gives up (exponent 0).
double retry_seconds(int timeout_exponent, int retries);

/// The state that ringcoll has set. A failure moves the device's own state to the error state.
enum class QueuePairState : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };
const char* name_of(QueuePairState state);

/// One stretch of registered memory, laid out like ibv_sge.
struct Slice {
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t lkey = 0;
};
inline Slice slice_of(const MemoryRegion& region, const void* data, uint32_t bytes) {
  return {reinterpret_cast<uintptr_t>(data), bytes, region.lkey()};
}

/// A write into the peer's memory. `from` is gathered in order; the list need last only for the
/// post. Unless it is inlined, its memory must last until completion.
struct Write {
  uint64_t id = 0;  // given back by the completion
  std::span<const Slice> from;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  std::optional<uint32_t> immediate;  // completes a receive of the peer, which gets it
  bool signaled = true;  // false: completes silently, unless it fails. At least one in a full send
                         // queue must be signaled: room is made by polling a completion
  bool solicited = false;  // notifies a peer that armed for solicited ones; with immediate only
  bool inlined = false;    // at most limits().inline_bytes; keys are not needed
};

/// A read of the peer's memory, laid out like a Write. Its completion is always signaled, and only
/// then the bytes may be looked at.
struct Read {
  uint64_t id = 0;  // given back by the completion
  std::span<const Slice> into;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
};

class QueuePair {
 public:
  QueuePair() = default;
  /// Makes it, in RESET.
  QueuePair(const ProtectionDomain& domain, const CompletionQueue& sends,
            const CompletionQueue& receives, const QueuePairLimits& limits);

  uint32_t number() const;
  const QueuePairLimits& limits() const { return limits_; }
  QueuePairState state() const { return state_; }
  const PortId& port_id() const { return port_id_; }

  /// The transitions. They throw Error(kInternal) in the wrong order, and Error(kTransport) if the
  /// device refuses.
  void to_init(const Connection& connection);
  void to_ready_to_receive(const Connection& connection);
  void to_ready_to_send(const Connection& connection);
  /// From any state. What is posted completes as flushed. Returns false, and logs, if the device
  /// refuses.
  bool to_error() noexcept;
  /// The state that the device reports: kError after a failure. Throws Error(kTransport).
  QueuePairState query_state() const;

  /// Posts in order; returns how many were taken, which is fewer if the send queue is full. Throws
  /// Error(kTransport) if the device refuses one for another reason. Allocates nothing.
  size_t try_write(std::span<const Write> writes);
  bool try_write(const Write& write) { return try_write(std::span(&write, 1)) == 1; }
  size_t try_read(std::span<const Read> reads);
  bool try_read(const Read& read) { return try_read(std::span(&read, 1)) == 1; }
  /// Posts `count` receives with one id and no memory, for writes with immediate; returns how many
  /// were taken. Allocates nothing.
  size_t try_receive(uint64_t id, size_t count);

  ibv_qp* get() const { return handle_.get(); }
  explicit operator bool() const { return static_cast<bool>(handle_); }
  /// Destroys it now.
  void reset() { handle_.reset(); }

 private:
  void expect(QueuePairState before, const char* step) const;
  template <typename Request>
  size_t try_post(std::span<const Request> requests);

  Handle<ibv_qp> handle_;
  QueuePairLimits limits_;
  QueuePairState state_ = QueuePairState::kReset;
  PortId port_id_;
};

}  // namespace ringcoll::verbs

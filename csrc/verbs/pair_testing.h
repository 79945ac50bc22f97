// Two queue pairs of one device, connected to each other: for tests on the fake and on real
// devices.
#pragma once

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "verbs/selection.h"

namespace ringcoll::verbs {

/// What belongs to one end. Members in the order in which they must outlive each other.
struct EndForTest {
  CompletionChannel channel;
  CompletionQueue queue;
  std::vector<std::byte> memory;
  MemoryRegion region;
  QueuePair pair;

  EndForTest(const Context& context, const ProtectionDomain& domain, const QueuePairLimits& limits,
             size_t bytes, int completions)
      : channel(context),
        queue(context, completions, &channel),
        memory(bytes),
        region(domain, memory.data(), bytes, Access::kRemoteWrite | Access::kRemoteRead),
        pair(domain, queue, queue, limits) {}

  /// The next completion, waiting up to `limit`; one with kOther and id 0 if none came.
  Completion wait(Duration limit = seconds(10)) {
    Deadline deadline(limit);
    Completion completion;
    while (queue.poll(std::span(&completion, 1)) == 0) {
      if (deadline.passed()) return Completion();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return completion;
  }
  bool quiet() {
    Completion completion;
    return queue.poll(std::span(&completion, 1)) == 0;
  }
};

struct PairForTest {
  UsablePort port;
  Context context;
  ProtectionDomain domain;
  EndForTest a, b;

  static constexpr size_t kBytes = 64 << 10;

  explicit PairForTest(const UsablePort& usable, const QueuePairLimits& limits = kLimits,
                       int completions = 256)
      : port(usable),
        context(usable.device),
        domain(context),
        a(context, domain, limits, kBytes, completions),
        b(context, domain, limits, kBytes, completions) {}

  static constexpr QueuePairLimits kLimits{
      .send_requests = 64, .receive_requests = 64, .send_pieces = 4, .inline_bytes = 64};

  /// How `mine` reaches `other`.
  Connection connection(const EndForTest& mine, const EndForTest& other) const {
    Connection c;
    c.port = static_cast<uint8_t>(port.port.number);
    c.peer_may = Access::kRemoteWrite | Access::kRemoteRead;
    c.remote_qp_num = other.pair.number();
    c.local_psn = psn_of(mine);
    c.remote_psn = psn_of(other);
    c.path_mtu_bytes = port.port.active_mtu_bytes;
    c.global_route = needs_global_route(port.port, port.gid.gid, port.gid.gid);
    c.gid_index = static_cast<uint8_t>(port.gid.index);
    c.remote_gid = port.gid.gid;
    c.remote_lid = port.port.lid;
    return c;
  }
  void connect() { connect(connection(a, b), connection(b, a)); }
  void connect(const Connection& of_a, const Connection& of_b) {
    a.pair.to_init(of_a);
    b.pair.to_init(of_b);
    a.pair.to_ready_to_receive(of_a);
    b.pair.to_ready_to_receive(of_b);
    a.pair.to_ready_to_send(of_a);
    b.pair.to_ready_to_send(of_b);
  }
  /// A write of one slice from a's memory to the same place of b's.
  Write write(const Slice& slice) const {
    Write write;
    write.id = 1;
    write.from = std::span(&slice, 1);
    write.remote_address = b.region.address();
    write.rkey = b.region.rkey();
    return write;
  }
  /// A read of the same place of b's memory into one slice of a's.
  Read read(const Slice& slice) const {
    Read read;
    read.id = 1;
    read.into = std::span(&slice, 1);
    read.remote_address = b.region.address();
    read.rkey = b.region.rkey();
    return read;
  }

 private:
  static uint32_t psn_of(const EndForTest& end) { return end.pair.number() * 7 + 5; }
};

}  // namespace ringcoll::verbs

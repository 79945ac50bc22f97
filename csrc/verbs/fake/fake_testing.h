// RDMA in software, inside one process, for tests. While a FakeVerbs lives, the table of libibverbs
// holds functions that behave as a reliable connected device does, including its refusals. Queue
// pair numbers are global in the process, so that ranks that are threads reach each other.
//
// It is strict where devices are. Room in a send queue comes back only when a completion is polled.
// A completion queue that overflows is lost. Local and remote keys differ. Memory must be
// registered in the queue pair's own domain. The two ends must agree on PSN and number. What a
// device would punish with a hang or a leak is recorded as a misuse; tests expect none.
//
// One at a time; it outlives every handle. Any thread may call its functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "verbs/completion.h"
#include "verbs/events.h"
#include "verbs/port.h"

namespace ringcoll::verbs {

struct FakeModel;

struct FakeGid {
  std::string address;  // "10.0.0.1" (in IPv6 form then) or "fe80::1"; "" leaves the entry empty
  GidType type = GidType::kRoceV2;
  unsigned interface_index = 1;  // loopback, which is everywhere
};

struct FakePort {
  LinkLayer link_layer = LinkLayer::kEthernet;
  PortState state = PortState::kActive;
  uint16_t lid = 0;
  uint32_t mtu_bytes = 4096;
  uint32_t max_message_bytes = 1u << 30;
  std::vector<FakeGid> gids = {
      {"fe80::1", GidType::kRoceV1}, {"fe80::1"}, {"10.0.0.1", GidType::kRoceV1}, {"10.0.0.1"}};
};

struct FakeDevice {
  std::string name = "fake0";
  std::vector<FakePort> ports = {FakePort{}};
  bool iwarp = false;
  int max_work_requests = 4096;
  int max_slices = 16;
  int max_completions = 1 << 16;
  uint32_t max_inline_bytes = 256;
  uint64_t memlock_bytes = UINT64_MAX;  // limit of all registered memory together
};

struct FakeOptions {
  std::vector<FakeDevice> devices = {FakeDevice{}};
  // False: a post has moved its bytes when it returns. True: a thread moves them some time later.
  // That finds code that reuses memory too early.
  bool in_background = false;
  // How long a device tries, whatever timeout and retries say. Tests of what happens then set less;
  // other tests must not fail on a busy machine.
  Duration give_up_after = seconds(5);
  // False: like a library before rdma-core 32, which has no call for the whole GID table.
  bool has_gid_table = true;
  bool fork_unneeded = true;
};

/// Calls that can be made to fail.
enum class FakeCall : uint8_t {
  kGetDeviceList,
  kOpenDevice,
  kAllocateDomain,
  kRegisterMemory,
  kCreateChannel,
  kCreateQueue,
  kCreateQueuePair,
  kModifyQueuePair,
  kPostSend,
  kPostReceive,
  kCount,
};

struct FakeCounters {
  uint64_t writes = 0;  // carried out
  uint64_t reads = 0;   // carried out
  uint64_t immediates = 0;
  uint64_t bytes = 0;
  uint64_t inline_bytes = 0;
  uint64_t queue_pairs_made = 0;
  uint64_t regions_made = 0;
  uint64_t receiver_not_ready = 0;  // times that a write found no receive
  uint64_t fork_inits = 0;
};

class FakeVerbs {
 public:
  explicit FakeVerbs(FakeOptions options = {});
  ~FakeVerbs();
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;

  /// The nth call from now (1: the next) fails with `error`.
  void fail(FakeCall call, int nth, int error);
  /// The nth write from now that a device begins to carry out completes with this status at the
  /// sender. Its queue pair is then in the error state.
  void fail_completion(int nth, Status status);
  /// Sets the link of a port, and raises the events of a device. While the link is down nothing
  /// passes.
  void set_link(const std::string& device, int port, bool up);
  /// Silently loses everything to and from a port, as a switch may.
  void set_loss(const std::string& device, int port, bool lost);
  /// Replaces the GID table, and raises its event.
  void set_gids(const std::string& device, int port, const std::vector<FakeGid>& gids);
  /// Raises an event of a port (`number`: the port), of a queue pair (its number), or of the
  /// device. Fatal events drive the queue pairs that they are about to the error state.
  void raise(const std::string& device, EventKind kind, uint32_t number = 0);

  FakeCounters counters() const;
  /// What a real device would have punished, in words; and how many objects are not destroyed yet.
  std::vector<std::string> misuses() const;
  int objects_left() const;

 private:
  std::unique_ptr<FakeModel> model_;
};

}  // namespace ringcoll::verbs

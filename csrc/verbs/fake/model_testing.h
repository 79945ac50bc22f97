// The inside of the fake device. Each object is the struct of verbs with what the fake adds. One
// mutex guards everything; functions whose names end in _locked expect it held.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "verbs/fake/fake_testing.h"
#include "verbs/table.h"

namespace ringcoll::verbs {

struct FakePortState {
  FakePort port;
  bool lost = false;
};

struct FakeDeviceState : ibv_device {
  FakeDevice device;
  std::vector<FakePortState> ports;
  uint64_t registered_bytes = 0;

  FakePortState* find_port(int number);
};

struct FakeContext : ibv_context {
  FakeDeviceState* owner = nullptr;
  Fd async;  // counts the events that wait
  std::deque<ibv_async_event> events;
  int users = 0;
};

struct FakeDomain : ibv_pd {
  int users = 0;
};

struct FakeRegion : ibv_mr {
  unsigned access = 0;

  bool covers(uint64_t address, uint64_t bytes) const;
};

struct FakeQueue;
struct FakeQueuePair;

struct FakeChannel : ibv_comp_channel {
  Fd ready;  // counts the events that wait
  std::deque<FakeQueue*> events;
  int users = 0;
};

/// A completion that waits to be polled.
struct FakeEntry {
  ibv_wc wc{};
  FakeQueuePair* queue_pair = nullptr;
  uint64_t send_sequence = 0;  // 0: of a receive
  bool solicited = false;
};

struct FakeQueue : ibv_cq {
  enum class Armed { kNo, kSolicited, kAny };
  std::deque<FakeEntry> entries;
  size_t room = 0;
  Armed armed = Armed::kNo;
  bool lost = false;
  int unacknowledged = 0;
  int users = 0;
};

struct FakeSend {
  ibv_send_wr request{};
  uint64_t sequence = 0;
  std::vector<ibv_sge> slices;
  std::vector<std::byte> inlined;
  uint64_t bytes = 0;
  Clock::time_point first_tried{};  // when it first could not go
};

struct FakeReceive {
  uint64_t id = 0;
};

struct FakeQueuePair : ibv_qp {
  ibv_qp_cap limits{};
  bool signal_all = false;
  ibv_qp_attr attributes{};
  std::deque<FakeSend> sends;
  std::deque<FakeReceive> receives;
  uint64_t sends_posted = 0, sends_retired = 0;  // retired: seen by a poll, so its room is free
  uint64_t receives_posted = 0, receives_retired = 0;
  int unacknowledged = 0;
};

struct FakeModel {
  explicit FakeModel(FakeOptions wanted);
  ~FakeModel();

  FakeOptions options;
  Table table;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<FakeDeviceState>> devices;
  std::set<FakeContext*> contexts;
  std::map<uint32_t, FakeQueuePair*> queue_pairs;
  std::map<uint32_t, FakeRegion*> regions;  // by local key
  std::array<std::pair<int, int>, static_cast<size_t>(FakeCall::kCount)> failures{};  // nth, errno
  std::pair<int, ibv_wc_status> failing_completion{0, IBV_WC_SUCCESS};
  std::vector<std::string> misuses;
  FakeCounters counters;
  int objects = 0;
  uint32_t next_key = 0x1000;
  bool stopping = false;
  std::unique_ptr<ScopedTable> installed;
  std::thread mover;  // moves what waits, and gives up on what waited too long

  /// The errno that this call was told to fail with, else 0.
  int failure_of_locked(FakeCall call);
  FakeDeviceState* find_device(const std::string& name);
  /// Carries out the sends that can go, on one queue pair or on all.
  void pump_locked(FakeQueuePair& from);
  void pump_all_locked();
  /// Called after an event that the peer of `to` may have waited for.
  void pump_peer_locked(const FakeQueuePair& to);
  void to_error_locked(FakeQueuePair& queue_pair);
  void complete_locked(FakeQueue& queue, const FakeEntry& entry);
  void tell_locked(FakeContext& context, const ibv_async_event& event);
  void run();
};

/// Where the functions of the table find the model.
FakeModel& fake_model();
void set_fake_model(FakeModel* model);

/// Distinguishes a remote key from the local one, so that neither is taken for the other.
constexpr uint32_t kRemoteKeyBit = 0x80000000;
/// Reads that a queue pair may have outstanding, and serve.
constexpr int kFakeReadsInFlight = 16;

/// Parts of the table, one for each source.
void fill_device_calls(Table* table);
void fill_object_calls(Table* table);
void fill_queue_pair_calls(Table* table);
int fake_post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad);
int fake_post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad);
int fake_poll(ibv_cq* cq, int count, ibv_wc* into);
int fake_arm(ibv_cq* cq, int solicited_only);

/// Sets errno and returns null.
template <typename Object>
Object* refuse(int error) {
  errno = error;
  return nullptr;
}

/// A descriptor that counts events, as those of channels and contexts do.
Fd make_counter();
void count_up(const Fd& fd);
/// Takes one; blocks if the descriptor does. False: errno is set.
bool count_down(int fd);

}  // namespace ringcoll::verbs

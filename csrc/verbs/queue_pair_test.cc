#include "verbs/queue_pair.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "verbs/fake/fake_testing.h"
#include "verbs/knobs.h"
#include "verbs/pair_testing.h"
#include "verbs/table.h"

namespace ringcoll::verbs {
namespace {

UsablePort first_port() { return select_ports(survey(), Config{}).usable.at(0); }

Code code_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text) *text = error.what();
    return error.code();
  }
  return Code::kAborted;  // none
}

TEST(QueuePair, GoesThroughItsStates) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  EXPECT_EQ(ends.a.pair.state(), QueuePairState::kReset);
  ends.connect();
  EXPECT_EQ(ends.a.pair.state(), QueuePairState::kReadyToSend);
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kReadyToSend);
  EXPECT_EQ(ends.a.pair.port_id().text(), "fake0:1, gid 3");
  EXPECT_TRUE(ends.a.pair.to_error());
  EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
}

/// As the device has it.
ibv_qp_attr queried(PairForTest& ends, int wanted) {
  ibv_qp_attr now{};
  ibv_qp_init_attr made{};
  EXPECT_EQ(ends.domain.table().query_qp(ends.a.pair.get(), &now, wanted, &made), 0);
  return now;
}

TEST(QueuePair, ThePathIsTheConnections) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  Connection c = ends.connection(ends.a, ends.b);
  c.service_level = 3;
  c.hop_limit = 17;
  c.traffic_class = 0x68;
  c.flow_label = 0x12345;
  ends.a.pair.to_init(c);
  ends.a.pair.to_ready_to_receive(c);
  const ibv_ah_attr path = queried(ends, IBV_QP_AV).ah_attr;
  EXPECT_EQ(path.port_num, c.port);
  EXPECT_EQ(path.sl, c.service_level);
  ASSERT_EQ(path.is_global, 1);
  EXPECT_TRUE(std::ranges::equal(path.grh.dgid.raw, c.remote_gid.bytes));
  EXPECT_EQ(path.grh.sgid_index, c.gid_index);
  EXPECT_EQ(path.grh.hop_limit, c.hop_limit);
  EXPECT_EQ(path.grh.traffic_class, c.traffic_class);
  EXPECT_EQ(path.grh.flow_label, c.flow_label);
}

TEST(QueuePair, ItsPeerAndItsPatienceAreTheConnections) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  Connection c = ends.connection(ends.a, ends.b);
  c.remote_psn = 0x654321;
  c.timeout_exponent = 15;
  c.retries = 5;
  c.receiver_not_ready_retries = 4;
  ends.connect(c, ends.connection(ends.b, ends.a));
  int wanted = IBV_QP_DEST_QPN | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
               IBV_QP_RNR_RETRY;
  const ibv_qp_attr now = queried(ends, wanted);
  EXPECT_EQ(now.dest_qp_num, ends.b.pair.number());
  EXPECT_EQ(now.sq_psn, c.local_psn);
  EXPECT_EQ(now.rq_psn, c.remote_psn);
  EXPECT_EQ(now.timeout, c.timeout_exponent);
  EXPECT_EQ(now.retry_cnt, c.retries);
  EXPECT_EQ(now.rnr_retry, c.receiver_not_ready_retries);
}

TEST(QueuePair, RefusesAWrongOrder) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  Connection c = ends.connection(ends.a, ends.b);
  std::string text;
  EXPECT_EQ(code_of([&] { ends.a.pair.to_ready_to_receive(c); }, &text), Code::kInternal);
  EXPECT_NE(text.find("to RTR from RESET, which goes from INIT only"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { ends.a.pair.to_ready_to_send(c); }), Code::kInternal);
  ends.a.pair.to_init(c);
  EXPECT_EQ(code_of([&] { ends.a.pair.to_init(c); }), Code::kInternal);
  EXPECT_EQ(code_of([&] { ends.a.pair.to_ready_to_send(c); }), Code::kInternal);
}

TEST(QueuePair, ARefusalOfTheDeviceNamesStepPlaceAndRemedy) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  Connection c = ends.connection(ends.a, ends.b);
  ends.a.pair.to_init(c);
  c.remote_gid = {};
  std::string text;
  EXPECT_EQ(code_of([&] { ends.a.pair.to_ready_to_receive(c); }, &text), Code::kTransport);
  EXPECT_EQ(text.find("ibv_modify_qp(RTR): Connection timed out [fake0:1, gid 3]: "), 0u) << text;
  EXPECT_EQ(ends.a.pair.state(), QueuePairState::kInit);
  c = ends.connection(ends.a, ends.b);
  c.gid_index = 77;
  EXPECT_EQ(code_of([&] { ends.a.pair.to_ready_to_receive(c); }, &text), Code::kTransport);
  EXPECT_NE(text.find("gid 77"), std::string::npos) << text;
  fake.fail(FakeCall::kModifyQueuePair, 1, EIO);
  EXPECT_FALSE(ends.a.pair.to_error());
}

TEST(QueuePair, AFullQueueIsNoError) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  ends.connect();
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  std::vector<Write> writes(100, ends.write(slice));
  for (size_t i = 0; i < writes.size(); i++) writes[i].id = i;
  EXPECT_EQ(ends.a.pair.try_write(writes), 64u);
  EXPECT_FALSE(ends.a.pair.try_write(writes[64]));
  EXPECT_EQ(ends.a.wait().id(), 0u);
  EXPECT_TRUE(ends.a.pair.try_write(writes[64]));
  EXPECT_EQ(ends.b.pair.try_receive(5, 100), 64u);
}

TEST(QueuePair, ARefusedPostThrows) {
  FakeVerbs fake;
  PairForTest ends(first_port());
  Slice slice = slice_of(ends.a.region, ends.a.memory.data(), 8);
  std::string text;
  EXPECT_EQ(code_of([&] { (void)ends.a.pair.try_write(ends.write(slice)); }, &text),
            Code::kTransport);  // not in RTS yet
  EXPECT_EQ(text.find("ibv_post_send: Invalid argument [fake0"), 0u) << text;
  EXPECT_EQ(code_of([&] { (void)ends.a.pair.try_receive(1, 1); }), Code::kTransport);
}

TEST(QueuePair, LimitsThatTheDeviceDoesNotHaveAreNamed) {
  FakeVerbs fake;
  std::string text;
  QueuePairLimits limits{.send_requests = 1 << 20};
  EXPECT_EQ(code_of([&] { PairForTest ends(first_port(), limits); }, &text), Code::kTransport);
  EXPECT_NE(text.find("more was asked for than the device has"), std::string::npos) << text;
  UsablePort port = first_port();
  fake.fail(FakeCall::kCreateQueuePair, 1, ENOMEM);
  EXPECT_EQ(code_of([&] { PairForTest ends(port); }, &text), Code::kTransport);
  EXPECT_NE(text.find("ulimit -l"), std::string::npos) << text;
}

TEST(QueuePair, SecondsUntilADeviceGivesUp) {
  EXPECT_NEAR(retry_seconds(14, 7), 0.537, 0.001);
  EXPECT_NEAR(retry_seconds(17, 6), 3.758, 0.001);
  EXPECT_EQ(retry_seconds(0, 7), 0);
  Connection defaults;
  EXPECT_GT(retry_seconds(defaults.timeout_exponent, defaults.retries), 2.5);
  Config config = KnobTable(knobs()).read([](const char*) { return nullptr; });
  EXPECT_EQ(config.qp_timeout, defaults.timeout_exponent);
  EXPECT_EQ(config.qp_retries, defaults.retries);
}

TEST(Handles, AreDestroyedInOrderAndLeaveNothing) {
  FakeVerbs fake;
  {
    PairForTest ends(first_port());
    ends.connect();
    ProtectionDomain moved = std::move(ends.domain);  // what was made from it does not mind
    EXPECT_TRUE(moved);
    EXPECT_FALSE(ends.domain);
    ends.domain = std::move(moved);
  }
  EXPECT_EQ(fake.objects_left(), 0);
  EXPECT_TRUE(fake.misuses().empty());
}

TEST(Handles, AFailedConstructionLeavesNothing) {
  FakeVerbs fake;
  UsablePort port = first_port();
  for (FakeCall call :
       {FakeCall::kOpenDevice, FakeCall::kAllocateDomain, FakeCall::kCreateChannel,
        FakeCall::kCreateQueue, FakeCall::kRegisterMemory, FakeCall::kCreateQueuePair})
    for (int nth = 1; nth <= 2; nth++) {
      fake.fail(call, nth, ENOMEM);
      EXPECT_THROW(
          {
            PairForTest ends(port);
            Context second(port.device);
            ProtectionDomain domain(second);
          },
          Error);
      EXPECT_EQ(fake.objects_left(), 0);
    }
}

TEST(Handles, AnUnknownDeviceNamesThoseThereAre) {
  FakeVerbs fake;
  std::string text;
  EXPECT_EQ(code_of([] { Context context("mlx5_9"); }, &text), Code::kTransport);
  EXPECT_NE(text.find("\"mlx5_9\"; there are: fake0"), std::string::npos) << text;
}

TEST(Handles, MemoryKnowsItsBounds) {
  FakeVerbs fake;
  Context context("fake0");
  ProtectionDomain domain(context);
  std::vector<std::byte> memory(4096);
  MemoryRegion region(domain, memory.data(), memory.size(),
                      Access::kRemoteWrite | Access::kRelaxedOrdering);
  EXPECT_TRUE(region.contains(memory.data() + 96, 4000));
  EXPECT_FALSE(region.contains(memory.data() + 97, 4000));
  EXPECT_NE(region.lkey(), region.rkey());
  EXPECT_EQ(region.address(), reinterpret_cast<uintptr_t>(memory.data()));
}

TEST(Handles, TooLittleLockedMemoryNamesTheLimit) {
  FakeVerbs fake({.devices = {{.memlock_bytes = 65536}}});
  Context context("fake0");
  ProtectionDomain domain(context);
  std::vector<std::byte> memory(1 << 20);
  std::string text;
  EXPECT_EQ(
      code_of([&] { MemoryRegion(domain, memory.data(), 1 << 20, Access::kLocalWrite); }, &text),
      Code::kTransport);
  EXPECT_EQ(text.find("ibv_reg_mr(1048576 bytes): Cannot allocate memory [fake0]: "), 0u) << text;
  EXPECT_NE(text.find("ulimit -l"), std::string::npos) << text;
}

}  // namespace
}  // namespace ringcoll::verbs

// Runs of all ranks in one thread, in any order: if one of them waited, nothing would go on.
#include "coll/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coll/terrain.h"
#include "coll/world_testing.h"
#include "mesh/ranks_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

[[maybe_unused]] auto* const kDevice =
    ::testing::AddGlobalTestEnvironment(new testing::RdmaForTests);

/// What one rank needs to run calls, but for somebody who waits.
class Runner {
 public:
  explicit Runner(Communicator& comm)
      : comm_(comm),
        plans_(comm.rank(), comm.topology().ring_order(), {}, terrain_of(comm)),
        slots_(comm.group().mesh().arena(), comm.group().extent(),
               static_cast<size_t>(plans_.selector().slots()),
               static_cast<size_t>(plans_.selector().bank_bytes()), SIZE_MAX),
        run_(comm, plans_, slots_) {}

  Rank rank() const { return comm_.rank(); }
  void begin(const rc_call& raw) {
    call_ = check_call(raw, comm_.rank(), comm_.size());
    run_.begin(*call_, signature_of(*call_, comm_.size(), ++sequence_));
  }
  /// True: it has ended. Notes what it wanted.
  bool advance() {
    if (run_.advance()) return true;
    wanted_.insert(run_.want().what);
    if (run_.want().what == Want::What::kLinks) run_.want().planned->connected = true;
    return false;
  }
  Run& run() { return run_; }
  /// As who executes does before it waits.
  void move_sends() {
    for (Rank peer = 0; peer < comm_.size(); peer++)
      if (peer != rank()) comm_.channel(peer).progress();
  }
  const std::set<Want::What>& wanted() const { return wanted_; }

 private:
  Communicator& comm_;
  PlanCache plans_;
  Slots slots_;
  Run run_;
  std::optional<Call> call_;
  std::set<Want::What> wanted_;
  uint64_t sequence_ = 0;
};

/// Makes a communicator for each rank, joined to all others, and calls `body` in one thread.
void in_one_thread(Rank size, const std::string& transport,
                   const std::function<void(std::vector<std::unique_ptr<Runner>>&)>& body) {
  std::vector<Communicator*> comms(size);
  std::barrier together(size);
  std::vector<Config> configs(size, testing::test_config(transport));
  auto errors = testing::run_exchanges(configs, [&](const Config& config, Exchange& exchange) {
    Communicator comm(config, "test", exchange);
    std::vector<Rank> all(size);
    std::iota(all.begin(), all.end(), 0);
    std::erase(all, comm.rank());
    comm.channels().connect(all);
    comms[comm.rank()] = &comm;
    together.arrive_and_wait();
    if (comm.rank() == 0) {
      std::vector<std::unique_ptr<Runner>> runners;
      for (Communicator* each : comms) runners.push_back(std::make_unique<Runner>(*each));
      body(runners);
    }
    together.arrive_and_wait();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

/// Advances all in random order until each has ended.
void run_all(std::vector<std::unique_ptr<Runner>>& runners, std::mt19937& random) {
  std::vector<Runner*> left;
  for (auto& runner : runners) left.push_back(runner.get());
  Deadline deadline(seconds(60));
  while (!left.empty()) {
    ASSERT_FALSE(deadline.passed());
    auto at = std::uniform_int_distribution<size_t>(0, left.size() - 1)(random);
    bool ended = left[at]->advance();
    for (auto& runner : runners) runner->move_sends();
    if (ended) left.erase(left.begin() + static_cast<ptrdiff_t>(at));
  }
}

class Runs : public ::testing::TestWithParam<std::string_view> {};

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const TransportRow& row : transports()) names.push_back(row.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(, Runs, ::testing::ValuesIn(names()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Runs, OfAllRanksEndInOneThread) {
  std::mt19937 random(1);
  for (Rank size : {2, 3, 5})
    in_one_thread(size, std::string(GetParam()), [&](auto& runners) {
      std::set<Want::What> wanted;
      for (int64_t count : {0, 1, 1000, 700000})
        for (Collective collective : {RC_ALLREDUCE, RC_ALLTOALL, RC_BROADCAST}) {
          // An alltoall's count is that for each rank.
          int64_t all = collective == RC_ALLTOALL ? count * size : count;
          std::vector<std::vector<int32_t>> in(size), out(size);
          std::vector<rc_buffer> buffers(size);
          for (auto& runner : runners) {
            Rank r = runner->rank();
            in[r].resize(all, r + 1), out[r].resize(all, -1);
            buffers[r] = {in[r].data(), out[r].data(), count};
            runner->begin(testing::call_of(collective, RC_INT32, RC_SUM, {&buffers[r], 1}));
          }
          run_all(runners, random);
          for (Rank r = 0; r < size; r++)
            for (int64_t i = 0; i < all; i++) {
              auto expected =
                  static_cast<int32_t>(collective == RC_ALLREDUCE  ? size * (size + 1) / 2
                                       : collective == RC_ALLTOALL ? i / count + 1
                                                                   : 1);
              ASSERT_EQ(out[r][i], expected) << name_of(collective) << " of " << count
                                             << ": element " << i << " of rank " << r;
            }
        }
      for (auto& runner : runners) wanted.insert(runner->wanted().begin(), runner->wanted().end());
      EXPECT_TRUE(wanted.contains(Want::What::kMessage));
      EXPECT_TRUE(wanted.contains(Want::What::kLinks));
    });
}

// A wait that another follows is told from it, though both are for the same link.
TEST(ARun, ProgressGrowsWithEachMessage) {
  in_one_thread(2, "loopback", [&](auto& runners) {
    std::vector<int32_t> data[2];
    rc_buffer buffers[2];
    for (auto& runner : runners) {
      data[runner->rank()].resize(1000);
      buffers[runner->rank()] = {data[runner->rank()].data(), data[runner->rank()].data(), 1000};
      runner->begin(
          testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffers[runner->rank()], 1}));
    }
    Runner &first = *runners[0], &second = *runners[1];
    while (!first.advance() && first.run().want().what != Want::What::kMessage) continue;
    uint64_t before = first.run().progress();
    EXPECT_FALSE(first.advance());
    EXPECT_EQ(first.run().progress(), before) << "nothing has come";
    second.advance();
    second.advance();
    first.advance();
    EXPECT_GT(first.run().progress(), before);
    std::mt19937 random(1);
    run_all(runners, random);
  });
}

// What is abandoned leaves nothing that the next call of another shape could take for its own.
TEST(ARun, CanBeAbandoned) {
  in_one_thread(2, "loopback", [&](auto& runners) {
    std::vector<int32_t> data(100);
    rc_buffer buffer{data.data(), data.data(), 100};
    Runner& alone = *runners[0];
    alone.begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffer, 1}));
    for (int i = 0; i < 3; i++) EXPECT_FALSE(alone.advance());
    alone.run().abandon();
    rc_buffer nothing{nullptr, nullptr, 0};
    alone.begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&nothing, 1}));
    EXPECT_TRUE(alone.advance());
  });
}

}  // namespace
}  // namespace ringcoll

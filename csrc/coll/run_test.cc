// Runs of all ranks in one thread, in any order: if one of them waited, nothing would go on.
#include "coll/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <deque>
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
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

[[maybe_unused]] auto* const kDevice =
    ::testing::AddGlobalTestEnvironment(new testing::RdmaForTests);

/// What one rank needs to run calls, but for somebody who waits.
class Runner {
 public:
  explicit Runner(Communicator& comm)
      : comm_(comm),
        plans_(comm.rank(), comm.topology().ring_order(), Borrowers::of(comm).at,
               Borrowers::of(comm).copied, terrain_of(comm)),
        slots_(comm.group().memory(), static_cast<size_t>(plans_.selector().slots()),
               static_cast<size_t>(plans_.selector().bank_bytes()), 1) {
    borrowers_.copied = Borrowers::of(comm).copied;
  }

  Rank rank() const { return comm_.rank(); }
  Rank position() const {  // in the ring
    const auto& order = comm_.topology().ring_order();
    return static_cast<Rank>(std::ranges::find(order, rank()) - order.begin());
  }
  /// The next call, though those before may not have ended.
  void begin(const rc_call& raw) {
    const Run* before = in_flight_.empty() ? nullptr : &in_flight_.back()->run;
    if (spare_.empty()) spare_.push_back(std::make_unique<Flight>(*this));
    in_flight_.push_back(std::move(spare_.back()));
    spare_.pop_back();
    Flight& next = *in_flight_.back();
    next.over = false;
    next.call = check_call(raw, comm_.rank(), comm_.size());
    next.run.begin(next.call, ++sequence_, before);
    most_in_flight_ = std::max(most_in_flight_, in_flight_.size());
  }
  bool has_room() const {
    return in_flight_.empty() ||
           (in_flight_.back()->run.may_be_followed() && in_flight_.size() < slots_.size());
  }
  /// True: all have ended. Notes what they wanted.
  bool advance() {
    for (auto& each : in_flight_) {
      if (each->over || (each->over = each->run.advance())) continue;
      const Want& want = each->run.want();
      wanted_.insert(want.what);
      if (want.what == Want::What::kLinks) want.planned->connected = true;
    }
    while (!in_flight_.empty() && in_flight_.front()->over) drop_oldest();
    return in_flight_.empty();
  }
  Run& run() { return in_flight_.front()->run; }
  void abandon() {
    run().abandon();
    drop_oldest();
  }
  size_t most_in_flight() const { return most_in_flight_; }
  const Counters& counters() const { return comm_.counters(); }
  /// As who executes does before it waits.
  void move_sends() {
    for (Rank peer = 0; peer < comm_.size(); peer++)
      if (peer != rank()) comm_.channel(peer).progress();
  }
  const std::set<Want::What>& wanted() const { return wanted_; }
  /// From now on calls may lend the caller's memory, as those of an executor do.
  void lend() { borrowers_ = Borrowers::of(comm_); }
  CopyWays& ways() { return ways_; }

 private:
  struct Flight {
    explicit Flight(Runner& runner)
        : run(runner.comm_, runner.plans_, runner.slots_, runner.ways_, runner.borrowers_) {}
    Run run;
    Call call;
    bool over = false;
  };
  void drop_oldest() {
    spare_.push_back(std::move(in_flight_.front()));
    in_flight_.pop_front();
    if (!in_flight_.empty()) run().be_first();
  }

  Communicator& comm_;
  PlanCache plans_;
  Slots slots_;
  CopyWays ways_{true};
  Borrowers borrowers_;  // nobody, but links copy what they can
  std::deque<std::unique_ptr<Flight>> in_flight_;
  std::vector<std::unique_ptr<Flight>> spare_;
  size_t most_in_flight_ = 0;
  std::set<Want::What> wanted_;
  uint64_t sequence_ = 0;
};

/// Makes a communicator for each rank, joined to all others, and calls `body` in one thread.
constexpr int64_t kCopiedBytes = 128 << 10;

void in_one_thread(Rank size, const std::string& transport,
                   const std::function<void(std::vector<std::unique_ptr<Runner>>&)>& body,
                   const std::string& algorithm = "", int64_t copied_bytes = kCopiedBytes) {
  std::vector<Communicator*> comms(size);
  std::barrier together(size);
  Config config_of_all = testing::test_config(transport, algorithm);
  config_of_all.handed_bytes = copied_bytes;
  std::vector<Config> configs(size, config_of_all);
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

INSTANTIATE_TEST_SUITE_P(, Runs, ::testing::ValuesIn(testing::transport_names()),
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

/// A call of some size, with the result that a rank expects.
struct Sample {
  Sample(Rank rank, Rank size, std::mt19937 random) {  // the same numbers on all ranks
    auto any = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    Collective collective = std::array{RC_ALLREDUCE, RC_BROADCAST, RC_ALLTOALL, RC_REDUCE,
                                       RC_ALLGATHER}[static_cast<size_t>(any(0, 4))];
    int64_t count = std::array<int64_t, 4>{1, 100, 5000, 300000}[static_cast<size_t>(any(0, 3))];
    auto root = static_cast<Rank>(any(0, size - 1));
    bool chunks = collective == RC_ALLTOALL || collective == RC_ALLGATHER;
    in.resize(collective == RC_ALLTOALL ? count * size : count, rank + 1);
    out.resize(chunks ? count * size : count, 0);
    expected.resize(out.size(), 0);
    for (size_t i = 0; i < out.size(); i++)
      expected[i] = static_cast<int32_t>(chunks ? static_cast<int64_t>(i) / count + 1
                                         : collective == RC_BROADCAST ? root + 1
                                                                      : size * (size + 1) / 2);
    if (collective == RC_BROADCAST && rank == root)
      expected.assign(out.size(), 0), no_output = true;
    if (collective == RC_REDUCE && rank != root) expected.assign(out.size(), 0);
    buffer = {in.data(), no_output ? nullptr : out.data(), count};
    call = testing::call_of(collective, RC_INT32, RC_SUM, {&buffer, 1});
    call.root = root;
  }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  std::vector<int32_t> in, out, expected;
  bool no_output = false;
  rc_buffer buffer{};
  rc_call call{};
};

// Each rank begins its calls, and goes on with them, when chance will have it.
TEST_P(Runs, OfSeveralCallsAreInFlight) {
  constexpr size_t kCalls = 40;
  std::mt19937 random(2);
  size_t most = 0;
  std::set<Want::What> wanted;
  for (Rank size : {2, 3, 5})
    in_one_thread(size, std::string(GetParam()), [&](auto& runners) {
      runners[size - 1]->lend();  // or not is each rank's own affair
      std::vector<std::deque<Sample>> samples(size);
      std::vector<size_t> begun(size);
      for (Rank r = 0; r < size; r++)
        for (size_t i = 0; i < kCalls; i++)
          samples[r].emplace_back(r, size, std::mt19937(static_cast<unsigned>(i)));
      Deadline deadline(seconds(60));
      for (size_t left = 1; left > 0;) {
        ASSERT_FALSE(deadline.passed());
        Runner& one = *runners[random() % runners.size()];
        size_t& number = begun[one.rank()];
        if (number < kCalls && one.has_room() && random() % 2 == 0)
          one.begin(samples[one.rank()][number++].call);
        if (random() % 4 > 0) one.advance();
        for (auto& runner : runners) runner->move_sends();
        left = 0;
        for (auto& runner : runners) left += begun[runner->rank()] < kCalls || !runner->advance();
      }
      for (Rank r = 0; r < size; r++)
        for (size_t i = 0; i < kCalls; i++)
          ASSERT_EQ(samples[r][i].out, samples[r][i].expected) << "call " << i << " of rank " << r;
      for (auto& runner : runners) {
        most = std::max(most, runner->most_in_flight());
        wanted.insert(runner->wanted().begin(), runner->wanted().end());
      }
    });
  EXPECT_GT(most, 2u);
  EXPECT_TRUE(wanted.contains(Want::What::kTurn));
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
    const ringcoll::Run& run = first.run();
    uint64_t before = run.progress();
    EXPECT_FALSE(first.advance());
    EXPECT_EQ(run.progress(), before) << "nothing has come";
    second.advance();
    second.advance();
    first.advance();
    EXPECT_GT(run.progress(), before);
    std::mt19937 random(1);
    run_all(runners, random);
  });
}

// A rank goes on with its second partner while its first has not read what it was sent; the third
// result would go where that lies.
TEST(ARun, DoesNotOverwriteWhatAPeerHasNotRead) {
  constexpr Rank kSize = 8;
  static constexpr int64_t kCount = 1000;  // longer than what is sent inline
  auto body = [](std::vector<std::unique_ptr<Runner>>& runners) {
    std::vector<std::vector<int32_t>> data(kSize);
    std::vector<rc_buffer> buffers(kSize);
    // By the place in the ring, in which partners are 1, 2 and 4 apart.
    std::vector<Runner*> at(kSize);
    for (auto& runner : runners) {
      Rank r = runner->rank();
      at[runner->position()] = runner.get();
      data[r].assign(kCount, 1 << r);
      buffers[r] = {data[r].data(), data[r].data(), kCount};
      runner->begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffers[r], 1}));
    }
    // Position 1 sends, and does nothing more.
    do {
      EXPECT_FALSE(at[1]->advance());
    } while (at[1]->run().want().what != Want::What::kMessage);
    for (int turn = 0; turn < 10; turn++)
      for (Rank p : {2, 3, 0, 4, 5, 6, 7}) at[p]->advance();
    EXPECT_EQ(at[0]->run().want().what, Want::What::kCompletion);
    EXPECT_EQ(at[0]->run().want().peer, at[1]->rank());
    std::mt19937 random(3);
    run_all(runners, random);
    for (const auto& each : data) EXPECT_EQ(std::ranges::count(each, 255), kCount);
  };
  for (const char* transport : {"loopback", "shm"})
    in_one_thread(kSize, transport, body, "allreduce=recursive_doubling", 0);
}

// Which way to pack is found out by calls that pack. What these take does not tell how fast packing
// is: a broadcast of 256 KiB was lent where the arena was faster, since its trial of the arena fell
// into that of stores past the caches.
TEST(ARun, IsNotTimedWhileWaysToPackAreTried) {
  constexpr uint64_t kBytes = 256 << 10;
  static constexpr int kMostCalls = 1000;
  in_one_thread(2, "shm", [](auto& runners) {
    std::vector<int32_t> data[2];
    rc_buffer buffers[2];
    for (auto& runner : runners) {
      runner->lend();
      auto& mine = data[runner->rank()];
      mine.resize(kBytes / sizeof(int32_t));
      buffers[runner->rank()] = {mine.data(), mine.data(), static_cast<int64_t>(mine.size())};
    }
    CopyWays& of_root = runners[0]->ways();
    FasterWay& ends = of_root.ends_of(RC_BROADCAST, kBytes);
    std::mt19937 random(1);
    int calls = 0, usual = 0;  // of which so many began when the way to pack was known
    for (; ends.is_trying(kBytes) && calls < kMostCalls; calls++) {
      usual += !of_root.pack.is_trying(kBytes);
      for (auto& runner : runners)
        runner->begin(
            testing::call_of(RC_BROADCAST, RC_INT32, RC_SUM, {&buffers[runner->rank()], 1}));
      run_all(runners, random);
    }
    EXPECT_LT(calls, kMostCalls);
    EXPECT_GE(usual, static_cast<int>(FasterWay::kTrials)) << "of " << calls;
  });
}

// Links of a host copy it when it is sent, so nothing is packed first; nor does its end wait for
// the peer to have read what was sent before.
TEST(ARun, OfAFewBytesIsSentFromTheCallersMemory) {
  in_one_thread(2, "shm", [](auto& runners) {
    constexpr int64_t kLonger = 2048, kShort = 4;
    std::vector<int32_t> longer[2], few[2];
    for (auto& runner : runners) {
      runner->lend();
      longer[runner->rank()].assign(kLonger, runner->rank() == 0 ? 7 : 0);
      few[runner->rank()].assign(kShort, runner->rank() == 0 ? 8 : 0);
    }
    // While the other one does nothing.
    auto ends = [&](Rank rank, std::vector<int32_t>& data) {
      rc_buffer buffer{data.data(), data.data(), static_cast<int64_t>(data.size())};
      runners[rank]->begin(testing::call_of(RC_BROADCAST, RC_INT32, RC_SUM, {&buffer, 1}));
      bool over = false;
      for (int turn = 0; turn < 5 && !over; turn++) over = runners[rank]->advance();
      return over;
    };
    ASSERT_TRUE(ends(0, longer[0]) && ends(0, few[0]));
    EXPECT_EQ(runners[0]->counters().bytes_packed, kLonger * sizeof(int32_t));
    EXPECT_EQ(runners[0]->counters().bytes_sent_zero_copy, 0u);
    few[0].assign(kShort, -1);  // which is the caller's again
    ASSERT_TRUE(ends(1, longer[1]) && ends(1, few[1]));
    EXPECT_EQ(longer[1], std::vector<int32_t>(kLonger, 7));
    EXPECT_EQ(few[1], std::vector<int32_t>(kShort, 8));
  });
}

// To all peers at once where all share memory; between hosts each in its round.
TEST(ARun, SendsEarlyWhatDependsOnNothing) {
  constexpr Rank kSize = 4;
  auto sent_before_anything_comes = [](const std::string& transport, Collective collective,
                                       const std::string& algorithm) {
    uint64_t sent = 0;
    auto body = [&](std::vector<std::unique_ptr<Runner>>& runners) {
      std::vector<std::vector<int32_t>> in(kSize), out(kSize);
      std::vector<rc_buffer> buffers(kSize);
      bool exchanges = collective == RC_ALLTOALL;
      for (auto& runner : runners) {
        Rank r = runner->rank();
        in[r].assign(kSize, 1 << r);
        out[r].resize(kSize);
        buffers[r] = {in[r].data(), out[r].data(), exchanges ? 1 : kSize};
        runner->begin(testing::call_of(collective, RC_INT32, RC_SUM, {&buffers[r], 1}));
      }
      uint64_t before = runners[2]->counters().messages_sent;
      while (!runners[2]->advance() && runners[2]->run().want().what != Want::What::kMessage) {
      }
      sent = runners[2]->counters().messages_sent - before;
      std::mt19937 random(4);
      run_all(runners, random);
      std::vector<int32_t> wanted =
          exchanges ? std::vector<int32_t>{1, 2, 4, 8} : std::vector<int32_t>(kSize, 15);
      for (const auto& each : out) EXPECT_EQ(each, wanted);
    };
    in_one_thread(kSize, transport, body, algorithm);
    return sent;
  };
  for (const char* transport : {"loopback", "shm"}) {
    EXPECT_EQ(sent_before_anything_comes(transport, RC_ALLREDUCE, "allreduce=one_shot"), 3);
    EXPECT_EQ(sent_before_anything_comes(transport, RC_ALLREDUCE, "allreduce=direct"), 3);
    EXPECT_EQ(sent_before_anything_comes(transport, RC_ALLREDUCE, "allreduce=ring"), 1);
    EXPECT_EQ(sent_before_anything_comes(transport, RC_ALLTOALL, ""), 3);
  }
  EXPECT_EQ(sent_before_anything_comes("tcp", RC_ALLTOALL, ""), 1);
}

// Of direct what a rank has combined: to all, before it waits for what they have.
TEST(ARun, SendsAResultToAllAtOnce) {
  constexpr Rank kSize = 4;
  auto body = [](std::vector<std::unique_ptr<Runner>>& runners) {
    std::vector<std::vector<int32_t>> in(kSize), out(kSize);
    std::vector<rc_buffer> buffers(kSize);
    for (auto& runner : runners) {
      Rank r = runner->rank();
      in[r].assign(kSize, 1 << r);
      out[r].resize(kSize);
      buffers[r] = {in[r].data(), out[r].data(), kSize};
      runner->begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffers[r], 1}));
    }
    auto until_it_waits = [&](Rank rank) {
      while (!runners[rank]->advance() &&
             runners[rank]->run().want().what != Want::What::kMessage) {
      }
    };
    uint64_t before = runners[2]->counters().messages_sent;
    for (Rank rank : {0, 1, 3, 2}) until_it_waits(rank);
    EXPECT_EQ(runners[2]->counters().messages_sent - before, 6u);
    std::mt19937 random(4);
    run_all(runners, random);
    for (const auto& each : out) EXPECT_EQ(each, std::vector<int32_t>(kSize, 15));
  };
  for (const char* transport : {"loopback", "shm"})
    in_one_thread(kSize, transport, body, "allreduce=direct");
}

TEST(ARun, MovesWhatIsItsOwnWhileItWaits) {
  in_one_thread(2, "shm", [](auto& runners) {
    for (Collective collective : {RC_ALLGATHER, RC_ALLTOALL}) {
      std::vector<int32_t> in(20, 7), out(20, 0);
      std::array<std::vector<int32_t>, 2> others = {in, out};
      std::array<rc_buffer, 2> buffers = {
          {{in.data(), out.data(), 10}, {others[0].data(), others[1].data(), 10}}};
      for (auto& runner : runners) {
        rc_buffer* own = &buffers[runner->rank() == 0 ? 0 : 1];
        runner->begin(testing::call_of(collective, RC_INT32, RC_SUM, {own, 1}));
      }
      for (int i = 0; i < 3; i++) EXPECT_FALSE(runners[0]->advance());
      EXPECT_EQ(std::count(out.begin(), out.begin() + 10, 7), 10) << name_of(collective);
      EXPECT_EQ(std::count(out.begin() + 10, out.end(), 0), 10);
      out.assign(20, 0);  // and only once
      std::mt19937 random(1);
      run_all(runners, random);
      EXPECT_EQ(std::count(out.begin(), out.begin() + 10, 0), 10);
      EXPECT_EQ(std::count(out.begin() + 10, out.end(), 7), 10);
    }
  });
}

// What is abandoned leaves nothing that the next call, another one, could take for its own.
TEST(ARun, CanBeAbandoned) {
  in_one_thread(2, "loopback", [&](auto& runners) {
    std::vector<int32_t> data(100);
    rc_buffer buffer{data.data(), data.data(), 100};
    Runner& alone = *runners[0];
    alone.begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&buffer, 1}));
    for (int i = 0; i < 3; i++) EXPECT_FALSE(alone.advance());
    alone.abandon();
    rc_buffer nothing{nullptr, nullptr, 0};
    alone.begin(testing::call_of(RC_ALLREDUCE, RC_INT32, RC_SUM, {&nothing, 1}));
    EXPECT_TRUE(alone.advance());
  });
}

}  // namespace
}  // namespace ringcoll

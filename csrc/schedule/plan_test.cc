// Lowering: every row again, run from plans on zero-copy memory; and the rules one by one.
#include "schedule/plan.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "schedule/history.h"
#include "schedule/simulator_testing.h"

namespace ringcoll {
namespace {

using simulator::Call;
using simulator::PlanOptions;
using simulator::ZeroCopy;

std::vector<std::vector<int64_t>> counts_to_try(const ScheduleRow& row, Rank size) {
  if (row.equal_counts) return {std::vector<int64_t>(size, 1), std::vector<int64_t>(size, 2)};
  if (!traits_of(row.collective).has_data()) return {{}};
  if (traits_of(row.collective).is_vector())
    return {{0}, {1}, {size - 1}, {size + 1}, {2 * size + 3}};
  std::vector<int64_t> uneven(size);
  for (Rank r = 0; r < size; r++) uneven[r] = r * 7 % 5;
  return {uneven, std::vector<int64_t>(size, 2)};
}

std::vector<Rank> positions_to_try(const ScheduleRow& row, Rank size) {
  if (!traits_of(row.collective).is_prefix() || size % 3 == 0) return {};
  return simulator::shuffled_positions(size);
}

// Links copy every message, or only short ones, and of those that several peers are sent fewer.
constexpr Ends::Copying kCopiesAll{1 << 20, 1 << 20}, kCopiesSome{3, 1};

/// In place, an element's input and output are one memory; alltoall's inputs and outputs are
/// different elements, so there it says nothing.
constexpr std::array kModes = {
    PlanOptions{.in_place = false, .pack_all = false, .shuffle = 1},
    PlanOptions{.in_place = true, .pack_all = false, .shuffle = 2, .sends_early = true},
    PlanOptions{.in_place = false, .pack_all = true, .shuffle = 3, .sends_early = true},
    PlanOptions{.in_place = true, .pack_all = true, .shuffle = 4},
    PlanOptions{.in_place = true, .shuffle = 5, .zero_copy = ZeroCopy::kAll},
    PlanOptions{.in_place = true, .shuffle = 6, .zero_copy = ZeroCopy::kOtherHosts},
    PlanOptions{.in_place = true, .pack_all = true, .shuffle = 7, .zero_copy = ZeroCopy::kAll},
    PlanOptions{.in_place = true, .shuffle = 8, .zero_copy = ZeroCopy::kAll, .copying = kCopiesAll},
    PlanOptions{.in_place = true,
                .shuffle = 9,
                .zero_copy = ZeroCopy::kAll,
                .copying = kCopiesSome,
                .sends_early = true},
    PlanOptions{.in_place = true,
                .pack_all = true,
                .shuffle = 10,
                .zero_copy = ZeroCopy::kAll,
                .copying = kCopiesSome},
};

class EveryPlan : public testing::TestWithParam<ScheduleRow> {};

std::string row_name(const testing::TestParamInfo<ScheduleRow>& info) {
  std::string name = fmt::format("{}_{}", name_of(info.param.collective), info.param.name);
  std::ranges::replace(name, '/', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Registry, EveryPlan,
                         testing::ValuesIn(schedules().begin(), schedules().end()), row_name);

std::string check(const Call& call, const std::vector<Schedule>& schedules,
                  const PlanOptions& options) {
  return simulator::check_plans(call, simulator::make_plans(call, schedules, options), options);
}

// Every size: the small ones and those about powers of two in every mode and with all counts, the
// others in turn.
TEST_P(EveryPlan, ComputesTheCollectiveWithoutCopies) {
  for (Rank size = 1; size <= 64; size++) {
    bool all = size <= 9 || (size & (size - 1)) == 0 || ((size - 1) & (size - 2)) == 0;
    size_t turn = static_cast<size_t>(size);
    for (const auto& levels : simulator::clusters(GetParam(), size))
      for (Rank root : {0, size / 3})
        for (const auto& counts : counts_to_try(GetParam(), size)) {
          if (root != 0 && !traits_of(GetParam().collective).has_root) continue;
          if (!all && turn++ % 2 == 0) continue;
          Call call = simulator::make_call(GetParam().collective, size, root, counts);
          call.levels = levels;
          call.positions = positions_to_try(GetParam(), size);
          std::vector<Schedule> made = simulator::make_schedules(GetParam(), call);
          for (size_t mode = 0; mode < kModes.size(); mode++) {
            if (!all && mode != turn / 2 % kModes.size()) continue;
            ASSERT_EQ(check(call, made, kModes[mode]), "") << call.name() << ", mode " << mode;
          }
        }
  }
}

TEST_P(EveryPlan, HoldsForManyOrdersOfRunning) {
  for (Rank size = 2; size <= 9; size++) {
    auto counts = counts_to_try(GetParam(), size).back();
    Call call = simulator::make_call(GetParam().collective, size, 1, counts);
    call.levels = simulator::clusters(GetParam(), size).front();
    call.positions = positions_to_try(GetParam(), size);
    std::vector<Schedule> made = simulator::make_schedules(GetParam(), call);
    for (unsigned shuffle = 0; shuffle < 20; shuffle++)
      for (ZeroCopy zero_copy : {ZeroCopy::kNone, ZeroCopy::kAll})
        for (bool early : {false, true}) {
          PlanOptions options = {
              .in_place = true, .shuffle = shuffle, .zero_copy = zero_copy, .sends_early = early};
          if (zero_copy == ZeroCopy::kAll && shuffle % 2 == 0)
            options.copying = shuffle % 4 == 0 ? kCopiesAll : kCopiesSome;
          ASSERT_EQ(check(call, made, options), "") << call.name() << ", order " << shuffle;
        }
  }
}

TEST_P(EveryPlan, IsMadeForThousandsOfRanks) {
  constexpr Rank kSize = 4096;
  Collective collective = GetParam().collective;
  std::vector<int64_t> counts = {1 << 20};
  if (!traits_of(collective).is_vector()) counts.assign(kSize, 3);
  std::vector<Groups> levels = simulator::cluster_of(kSize, 8, 32);
  Problem problem = {.rank = 1234,
                     .size = kSize,
                     .root = 5,
                     .counts = counts,
                     .recv_counts = counts,
                     .levels = levels};
  int64_t space = space_of(collective, problem);
  Schedule schedule = GetParam().make(problem);
  // Inputs everywhere serve every collective; but what alltoall receives has none.
  Ends ends = {{{0, collective == RC_ALLTOALL ? space / 2 : space}}, {}, {}};
  EXPECT_EQ(lower(schedule, space, ends, false, problem.rank).actions.size(), schedule.size());
}

// The tests above are only as good as their judge: it has to notice what is wrong.
TEST(PlanSimulator, NoticesWhatIsWrong) {
  Call call = simulator::make_call(RC_ALLREDUCE, 8, 0, {4});
  std::vector<Schedule> made =
      simulator::make_schedules(*find_schedule(RC_ALLREDUCE, "recursive_doubling"), call);
  auto broken = [&](auto&& change) {
    std::vector<Plan> plans = simulator::make_plans(call, made, {});
    change(plans[3]);
    return simulator::check_plans(call, plans, {.in_place = true});
  };
  auto expect = [](const std::string& what, const std::string& words) {
    EXPECT_NE(what.find(words), std::string::npos) << what;
  };
  EXPECT_EQ(broken([](Plan&) {}), "");
  auto receipt = [](Plan& plan, size_t round) -> Receipt& {
    return plan.actions[round].receipts[0];
  };
  expect(broken([&](Plan& p) { receipt(p, 1).after = -1; }), "may still read");
  expect(broken([&](Plan& p) { receipt(p, 1).after = 1; }), "its own round");
  expect(broken([&](Plan& p) { receipt(p, 0).result = Storage::kBank0; }), "may still read");
  expect(broken([&](Plan& p) { receipt(p, 0).range.count = 3; }), "do not make up");
  expect(broken([&](Plan& p) { receipt(p, 1).operand = Storage::kBank0; }),
         "not the contributions");
  expect(broken([&](Plan& p) { p.pack.clear(); }), "does not have");
  expect(broken([&](Plan& p) { p.two_banks = false; }), "second bank");
  expect(broken([&](Plan& p) { p.actions[2].recv_from = kNobody; }), "not the contributions");
  expect(broken([&](Plan& p) { p.actions[2].send_to = kNobody; }), "waits for ever");
  expect(broken([&](Plan& p) { p.actions[0].send_from = Storage::kInput; }),
         "outside of the banks");
}

// A plan that sends its input when half of a sum has replaced it: right where half of a sum is due.
TEST(PlanSimulator, SendsWhatIsThereWhenItIsSent) {
  Call call = simulator::make_call(RC_ALLREDUCE, 4, 0, {4});
  PlanOptions options = {.in_place = true, .zero_copy = ZeroCopy::kAll, .copying = kCopiesAll};
  auto plans = simulator::make_plans(
      call, simulator::make_schedules(*find_schedule(RC_ALLREDUCE, "recursive_doubling"), call),
      options);
  for (Plan& plan : plans) {
    ASSERT_EQ(plan.actions[0].send_from, Storage::kInput);
    plan.actions[0].receipts[0].output_too = true;
    plan.actions[1].send_from = Storage::kInput;
  }
  EXPECT_EQ(simulator::check_plans(call, plans, options), "");
  options.in_place = false;
  std::string what = simulator::check_plans(call, plans, options);
  EXPECT_NE(what.find("not the contributions"), std::string::npos) << what;
}

TEST(PlanSimulator, NoticesThatTheCallersMemoryIsOverwrittenTooEarly) {
  Call call = simulator::make_call(RC_ALLREDUCE, 2, 0, {4});
  PlanOptions options = {.in_place = true, .zero_copy = ZeroCopy::kAll};
  auto plans = simulator::make_plans(
      call, simulator::make_schedules(*find_schedule(RC_ALLREDUCE, "recursive_doubling"), call),
      options);
  for (Plan& plan : plans) plan.actions[0].send_from = Storage::kInput;
  std::string what = simulator::check_plans(call, plans, options);
  EXPECT_NE(what.find("the input in element 0, which a peer may still read"), std::string::npos)
      << what;
}

Plan plan_of(Collective collective, std::string_view name, Rank size, Rank rank, int64_t count) {
  Call call = simulator::make_call(collective, size, 0, {count});
  Schedule schedule = find_schedule(collective, name)->make(call.problem(rank));
  return lower(schedule, count, call.ends(rank), false, rank);
}

// What the speed of two ranks on one host depends on: half is packed, half is combined from the
// input and the peer's memory, half is copied from the peer's memory.
TEST(Lowering, DirectAllreduceMovesNothingTwice) {
  Plan plan = plan_of(RC_ALLREDUCE, "direct", 2, 0, 10);
  EXPECT_EQ(plan.pack, (std::vector<Packing>{{{5, 5}, Storage::kBank0}}));
  ASSERT_EQ(plan.actions.size(), 2u);
  const Action& reduce = plan.actions[0];
  EXPECT_EQ(reduce.send_from, Storage::kBank0);
  ASSERT_EQ(reduce.receipts.size(), 1u);
  EXPECT_EQ(reduce.receipts[0].operand, Storage::kInput);
  EXPECT_EQ(reduce.receipts[0].result, Storage::kBank0);
  EXPECT_TRUE(reduce.receipts[0].output_too);
  EXPECT_EQ(reduce.receipts[0].after, -1);
  const Action& gather = plan.actions[1];
  ASSERT_EQ(gather.receipts.size(), 1u);
  EXPECT_EQ(gather.receipts[0].combine, Combine::kCopy);
  EXPECT_EQ(gather.receipts[0].result, Storage::kOutput);
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_FALSE(plan.two_banks);
}

// What links copy is neither packed nor, as a result that is sent on, written twice.
TEST(Lowering, WhatIsCopiedWhenItIsSentLiesWithTheCallerAlone) {
  Call call = simulator::make_call(RC_ALLREDUCE, 2, 0, {10});
  Schedule schedule = find_schedule(RC_ALLREDUCE, "direct")->make(call.problem(0));
  Ends ends = call.ends(0, ZeroCopy::kAll);
  ends.copying = Ends::Copying{5, 0};
  Plan plan = lower(schedule, 10, ends, false, 0);
  EXPECT_TRUE(plan.pack.empty());
  EXPECT_EQ(plan.actions[0].send_from, Storage::kInput);
  EXPECT_EQ(plan.actions[0].receipts.at(0).result, Storage::kOutput);
  EXPECT_EQ(plan.actions[1].send_from, Storage::kOutput);
  ends.copying->most = 4;
  plan = lower(schedule, 10, ends, false, 0);
  EXPECT_EQ(plan.actions[0].send_from, Storage::kBank0) << "a longer message is packed";
  EXPECT_EQ(plan.actions[1].send_from, Storage::kBank0);
}

// A broadcast is packed once for all, unless it is so short that copies cost nothing.
TEST(Lowering, WhatSeveralMessagesSendIsCopiedForEachOnlyIfItIsShort) {
  Schedule schedule = {{1, {0, 4}, kNobody, {}, Combine::kCopy},
                       {2, {0, 4}, kNobody, {}, Combine::kCopy}};
  Ends ends = {.inputs = {{0, 4}}, .zero_copy = {false, true, true}};
  ends.copying = Ends::Copying{8, 4};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kInput);
  ends.copying->most_otherwise = 3;
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kBank0);
}

// A buffer that goes to a rank which sends nothing has to come back.
TEST(Lowering, WhatIsSentOneWayIsCopiedOnlyIfItIsShort) {
  Schedule schedule = {{1, {0, 4}, kNobody, {}, Combine::kCopy}};
  Ends ends = {.inputs = {{0, 4}}, .zero_copy = {false, true}};
  ends.copying = Ends::Copying{8, 3};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kBank0);
  schedule.push_back({kNobody, {}, 1, {4, 4}, Combine::kCopy});
  EXPECT_EQ(lower(schedule, 8, ends, false, 0).actions[0].send_from, Storage::kInput);
}

// Several stretches of the caller's memory are one message if that is copied.
TEST(Lowering, CopiesAMessageOfSeveralRanges) {
  Schedule schedule = {{1, {0, 4}, kNobody, {}, Combine::kCopy}};
  Ends ends = {.inputs = {{0, 2}, {2, 2}}, .zero_copy = {false, true}};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kBank0);
  ends.copying = Ends::Copying{4, 4};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kInput);
}

// Whole vectors are exchanged, so that a result may not replace what the partner still reads.
TEST(Lowering, RecursiveDoublingAlternatesBanks) {
  Plan plan = plan_of(RC_ALLREDUCE, "recursive_doubling", 16, 3, 1);
  ASSERT_EQ(plan.actions.size(), 4u);
  EXPECT_TRUE(plan.two_banks);
  std::array<Storage, 4> results = {Storage::kBank1, Storage::kBank0, Storage::kBank1,
                                    Storage::kOutput};
  std::array<int, 4> waits = {-1, 0, 1, -1};
  for (size_t i = 0; i < 4; i++) {
    ASSERT_EQ(plan.actions[i].receipts.size(), 1u);
    EXPECT_EQ(plan.actions[i].receipts[0].result, results[i]);
    EXPECT_EQ(plan.actions[i].receipts[0].after, waits[i]);
    EXPECT_EQ(plan.actions[i].receipts[0].output_too, false);
  }
}

// A peer that has read what was packed may have taken its lines away.
TEST(Lowering, FirstCombinationReadsTheInputThoughItWasPacked) {
  Plan plan = plan_of(RC_ALLREDUCE, "recursive_doubling", 4, 1, 8);
  EXPECT_EQ(plan.pack, (std::vector<Packing>{{{0, 8}, Storage::kBank0}}));
  ASSERT_EQ(plan.actions.size(), 2u);
  EXPECT_EQ(plan.actions[0].receipts[0].operand, Storage::kInput);
  EXPECT_EQ(plan.actions[1].receipts[0].operand, Storage::kBank1);
}

TEST(Lowering, RingNeedsOneBank) {
  for (Rank rank = 0; rank < 4; rank++) {
    Plan plan = plan_of(RC_ALLREDUCE, "ring", 4, rank, 16);
    EXPECT_FALSE(plan.two_banks);
    EXPECT_EQ(plan.pack.size(), 1u);  // the chunk that is sent first, and no other
    EXPECT_EQ(plan.pack[0].range.count, 4);
    EXPECT_TRUE(plan.moves.empty());
  }
}

// Where all peers can be sent the caller's memory, nothing is copied: each input is read once, by a
// peer or by a combination, and each result is written to its output and sent from there.
TEST(Lowering, DirectRingCopiesNothing) {
  for (Rank size : {2, 4})
    for (Rank rank = 0; rank < size; rank++) {
      Call call = simulator::make_call(RC_ALLREDUCE, size, 0, {16});
      Schedule schedule = find_schedule(RC_ALLREDUCE, "ring")->make(call.problem(rank));
      Plan plan = lower(schedule, 16, call.ends(rank, ZeroCopy::kAll), false, rank);
      EXPECT_TRUE(plan.pack.empty());
      EXPECT_TRUE(plan.moves.empty());
      auto half = static_cast<size_t>(size - 1);
      for (size_t round = 0; round < plan.actions.size(); round++) {
        const Action& action = plan.actions[round];
        bool gathers = round >= half;
        Storage from = gathers ? Storage::kOutput : round > 0 ? Storage::kBank0 : Storage::kInput;
        EXPECT_EQ(action.send_from, from);
        ASSERT_EQ(action.receipts.size(), 1u);
        EXPECT_FALSE(action.receipts[0].output_too);
        EXPECT_EQ(action.receipts[0].after, -1);
        bool whole = gathers || round == half - 1;
        EXPECT_EQ(action.receipts[0].result, whole ? Storage::kOutput : Storage::kBank0);
      }
    }
}

// A result that goes to a peer by shared memory as well lies in the arena for both.
TEST(Lowering, MessageThatCannotGoDirectlyIsPacked) {
  Schedule schedule = {{1, {0, 4}, kNobody, {}, Combine::kCopy},
                       {2, {0, 4}, kNobody, {}, Combine::kCopy}};
  Ends ends = {{{0, 4}}, {}, {false, true, false}};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kBank0);
  ends.zero_copy[2] = true;
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kInput);
  // Two ranges of the caller's memory are no message.
  ends.inputs = {{0, 2}, {2, 2}};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kBank0);
}

// An exchange would overwrite the input, in place, while the partner may still read it.
TEST(Lowering, InputThatIsReplacedByWhatDoesNotContainItIsPacked) {
  Call call = simulator::make_call(RC_ALLREDUCE, 2, 0, {4});
  Schedule schedule = find_schedule(RC_ALLREDUCE, "recursive_doubling")->make(call.problem(0));
  Plan plan = lower(schedule, 4, call.ends(0, ZeroCopy::kAll), false, 0);
  EXPECT_EQ(plan.actions[0].send_from, Storage::kBank0);
}

// Unless it has been copied by then.
TEST(Lowering, InputThatIsCopiedWhenItIsSentIsNotPacked) {
  Call call = simulator::make_call(RC_ALLREDUCE, 2, 0, {4});
  Ends ends = call.ends(0, ZeroCopy::kAll);
  ends.copying = kCopiesAll;
  Schedule schedule = find_schedule(RC_ALLREDUCE, "recursive_doubling")->make(call.problem(0));
  Plan plan = lower(schedule, 4, ends, false, 0);
  EXPECT_TRUE(plan.pack.empty());
  EXPECT_EQ(plan.actions[0].send_from, Storage::kInput);
  ASSERT_EQ(plan.actions[0].receipts.size(), 1u);
  EXPECT_EQ(plan.actions[0].receipts[0].result, Storage::kOutput);
  EXPECT_EQ(lower(schedule, 4, ends, true, 0).actions[0].send_from, Storage::kBank0);  // prescaled
}

TEST(Lowering, InputThatIsSentAfterTheResultCameIsPacked) {
  Schedule schedule = {
      {.recv_from = 1, .recv = {0, 4}, .combine = Combine::kReduce},
      {.send_to = 1, .send = {0, 4}, .sends_input = true},
  };
  Ends ends = {{{0, 4}}, {{0, 4}}, {false, true}, kCopiesAll};
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[1].send_from, Storage::kBank0);
  std::swap(schedule[0], schedule[1]);
  EXPECT_EQ(lower(schedule, 4, ends, false, 0).actions[0].send_from, Storage::kInput);
}

TEST(Lowering, RankWithoutOutputStoresNothingForIt) {
  Plan leaf = plan_of(RC_REDUCE, "binomial", 2, 1, 10);
  EXPECT_EQ(leaf.pack, (std::vector<Packing>{{{0, 10}, Storage::kBank0}}));
  EXPECT_TRUE(leaf.moves.empty());
  Plan root = plan_of(RC_REDUCE, "binomial", 2, 0, 10);
  EXPECT_TRUE(root.pack.empty());
  ASSERT_EQ(root.actions[0].receipts.size(), 1u);
  EXPECT_EQ(root.actions[0].receipts[0].operand, Storage::kInput);
  EXPECT_EQ(root.actions[0].receipts[0].result, Storage::kOutput);
}

TEST(Lowering, WhatNobodyWantsGoesNowhere) {
  Schedule schedule = {{kNobody, {}, 1, {0, 4}, Combine::kReduce}};
  Plan plan = lower(schedule, 4, {{{0, 4}}, {}}, true, 0);
  ASSERT_EQ(plan.actions[0].receipts.size(), 1u);
  EXPECT_EQ(plan.actions[0].receipts[0].result, Storage::kNowhere);
  EXPECT_TRUE(plan.pack.empty());
}

TEST(Lowering, OneRankMovesItsInputToItsOutput) {
  Plan plan = plan_of(RC_ALLREDUCE, "ring", 1, 0, 10);
  EXPECT_TRUE(plan.pack.empty());
  ASSERT_EQ(plan.moves.size(), 1u);
  EXPECT_EQ(plan.moves[0].range, (Range{0, 10}));
  EXPECT_EQ(plan.moves[0].from, Storage::kInput);
  Plan packed = lower({}, 10, {{{0, 10}}, {{0, 10}}}, true, 0);
  EXPECT_EQ(packed.pack, (std::vector<Packing>{{{0, 10}}}));
  ASSERT_EQ(packed.moves.size(), 1u);
  EXPECT_EQ(packed.moves[0].from, Storage::kBank0);
}

TEST(Lowering, OwnBlockOfAlltoallIsMoved) {
  Call call = simulator::make_call(RC_ALLTOALL, 3, 0, {2, 2, 2});
  Schedule schedule = find_schedule(RC_ALLTOALL, "direct")->make(call.problem(1));
  Plan plan = lower(schedule, 12, call.ends(1), false, 1);
  ASSERT_EQ(plan.moves.size(), 1u);
  EXPECT_EQ(plan.moves[0].range, (Range{2, 2}));
  EXPECT_EQ(plan.moves[0].to_first, 8);
  for (const Action& action : plan.actions) EXPECT_NE(action.send_to, 1);
}

TEST(Lowering, PartsFollowTheEnds) {
  // Only the middle of what is received is wanted; the first receipt is forwarded.
  Schedule schedule = {{kNobody, {}, 1, {0, 9}, Combine::kCopy},
                       {2, {0, 3}, kNobody, {}, Combine::kCopy}};
  Plan plan = lower(schedule, 9, {{}, {{2, 4}}, {}}, false, 0);
  const std::vector<Receipt>& receipts = plan.actions[0].receipts;
  ASSERT_EQ(receipts.size(), 4u);
  EXPECT_EQ(receipts[0].result, Storage::kBank0);
  EXPECT_FALSE(receipts[0].output_too);
  EXPECT_EQ(receipts[1].result, Storage::kBank0);
  EXPECT_TRUE(receipts[1].output_too);
  EXPECT_EQ(receipts[2].result, Storage::kOutput);
  EXPECT_EQ(receipts[3].result, Storage::kNowhere);
  EXPECT_EQ(receipts[3].range, (Range{6, 3}));
}

// A message made of an input and a result: both lie in bank 0, the input packed up front.
TEST(Lowering, MixedMessageLiesInOneBank) {
  Schedule schedule = {{kNobody, {}, 1, {0, 3}, Combine::kReduce},
                       {2, {0, 6}, kNobody, {}, Combine::kCopy}};
  Plan plan = lower(schedule, 6, {{{0, 6}}, {}}, false, 0);
  EXPECT_EQ(plan.pack, (std::vector<Packing>{{{3, 3}, Storage::kBank0}}));
  EXPECT_EQ(plan.actions[0].receipts[0].operand, Storage::kInput);
  EXPECT_EQ(plan.actions[0].receipts[0].result, Storage::kBank0);
  EXPECT_EQ(plan.actions[1].send_from, Storage::kBank0);
}

void expect_internal(const Schedule& schedule, int64_t space, const Ends& ends,
                     const std::string& words) {
  try {
    lower(schedule, space, ends, false, 0);
    ADD_FAILURE() << "lowered: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInternal);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Lowering, RefusesWhatCannotBe) {
  Range all = {0, 4};
  expect_internal({{1, all, kNobody, {}, Combine::kCopy}}, 4, {}, "before it has them");
  expect_internal({{kNobody, {}, 1, all, Combine::kReduce}}, 4, {{{0, 2}}, {}}, "does not have");
  expect_internal({{1, {2, 4}, kNobody, {}, Combine::kCopy}}, 4, {{all}, {}}, "outside");
  expect_internal({}, 4, {{}, {all}}, "nothing is received");
  expect_internal({{0, {0, 2}, 0, {2, 1}, Combine::kCopy}}, 4, {{all}, {}}, "inside the rank");
  // Elements 0…1 lie beside 2…3 in round 0, may not stay in that bank in round 1, and must in 2.
  expect_internal({{1, all, kNobody, {}, Combine::kCopy},
                   {1, {0, 2}, 1, {0, 2}, Combine::kReduce},
                   {1, all, kNobody, {}, Combine::kCopy}},
                  4, {{all}, {}}, "no bank can hold");
}

// What is exchanged goes to the other bank, so what is sent with it is packed there.
TEST(Lowering, InputsArePackedWhereTheirMessageLies) {
  Schedule schedule = {{1, {0, 2}, 1, {0, 2}, Combine::kCopy},
                       {2, {0, 4}, kNobody, {}, Combine::kCopy}};
  Plan plan = lower(schedule, 4, {{{0, 4}}, {}}, false, 0);
  EXPECT_EQ(plan.pack,
            (std::vector<Packing>{{{0, 2}, Storage::kBank0}, {{2, 2}, Storage::kBank1}}));
  EXPECT_TRUE(plan.two_banks);
  EXPECT_EQ(plan.actions[0].receipts[0].result, Storage::kBank1);
  EXPECT_EQ(plan.actions[1].send_from, Storage::kBank1);
}

TEST(BankAssignment, KeepsParity) {
  BankAssignment banks(5);
  EXPECT_TRUE(banks.relate(0, 1, true));
  EXPECT_TRUE(banks.relate(1, 2, true));
  EXPECT_TRUE(banks.relate(3, 4, false));
  EXPECT_EQ(banks.bank_of(2), -1);
  banks.decide(2, 1);
  EXPECT_EQ(banks.bank_of(0), 1);
  EXPECT_EQ(banks.bank_of(1), 0);
  EXPECT_TRUE(banks.relate(4, 1, false));
  EXPECT_EQ(banks.bank_of(3), 0);
  EXPECT_FALSE(banks.relate(0, 3, false));
  EXPECT_FALSE(banks.relate(0, 2, true));
}

}  // namespace
}  // namespace ringcoll

// Every row of the registry, on every size to 64: right results, messages matched round by round,
// and costs as its traffic and its cost line say. New rows are tested unasked.
#include "schedule/schedule.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <set>

#include "schedule/cost_line_testing.h"
#include "schedule/families.h"
#include "schedule/simulator_testing.h"

namespace ringcoll {
namespace {

using simulator::Call;

constexpr Rank kLargestSize = 64;
constexpr int64_t kPrime = 67;

std::vector<std::vector<int64_t>> counts_to_try(const ScheduleRow& row, Rank size) {
  Collective collective = row.collective;
  if (collective == RC_BARRIER) return {{}};
  std::vector<std::vector<int64_t>> tries;
  if (traits_of(collective).is_vector()) {
    for (int64_t count :
         {int64_t{0}, int64_t{1}, int64_t{size - 1}, int64_t{size}, int64_t{size + 1}, kPrime})
      tries.push_back({count});
    return tries;
  }
  for (int64_t count : {0, 1, 3}) tries.emplace_back(size, count);
  if (row.equal_counts) return tries;
  std::vector<int64_t> uneven(size), one_has_all(size, 0);
  for (Rank r = 0; r < size; r++) uneven[r] = r * 7 % 5;
  one_has_all[size / 2] = 3;
  tries.push_back(uneven);
  tries.push_back(one_has_all);
  return tries;
}

std::vector<Rank> roots_to_try(Collective collective, Rank size) {
  if (!traits_of(collective).has_root) return {0};
  std::set<Rank> roots = {0, size / 2, size - 1};
  for (Rank r = 0; r < std::min<Rank>(size, 9); r++) roots.insert(r);
  if (size > 17) roots = {0, size / 3};
  return {roots.begin(), roots.end()};
}

class EveryRow : public testing::TestWithParam<ScheduleRow> {};

std::string row_name(const testing::TestParamInfo<ScheduleRow>& info) {
  std::string name = fmt::format("{}_{}", name_of(info.param.collective), info.param.name);
  std::ranges::replace(name, '/', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Registry, EveryRow,
                         testing::ValuesIn(schedules().begin(), schedules().end()), row_name);

template <typename Check>
void for_each_call(const ScheduleRow& row, Check&& check) {
  for (Rank size = 1; size <= kLargestSize; size++)
    for (const auto& levels : simulator::clusters(row, size))
      for (Rank root : roots_to_try(row.collective, size))
        for (const auto& counts : counts_to_try(row, size)) {
          Call call = simulator::make_call(row.collective, size, root, counts);
          call.levels = levels;
          check(call);
          if (testing::Test::HasFailure()) return;
        }
}

TEST_P(EveryRow, ComputesTheCollective) {
  for_each_call(GetParam(), [&](Call call) {
    if (traits_of(call.collective).is_prefix() && call.counts[0][0] % 2 == 1)
      call.positions = simulator::shuffled_positions(call.size);
    std::vector<Schedule> made = simulator::make_schedules(GetParam(), call);
    EXPECT_EQ(simulator::check_schedules(call, made), "") << call.name();
  });
}

TEST_P(EveryRow, ComputesTheCollectiveOfMoreRanks) {
  for (Rank size : {65, 100, 130}) {
    std::vector<int64_t> counts(traits_of(GetParam().collective).is_vector() ? 1 : size, 2);
    if (!traits_of(GetParam().collective).has_data()) counts.clear();
    Call call = simulator::make_call(GetParam().collective, size, size / 3, counts);
    call.levels = simulator::clusters(GetParam(), size).front();
    std::vector<Schedule> made = simulator::make_schedules(GetParam(), call);
    ASSERT_EQ(simulator::check_schedules(call, made), "") << call.name();
  }
}

void expect_cost(std::string_view formula, double n, const simulator::Sizes& sizes, int64_t cost) {
  double value = simulator::evaluate(formula, n, sizes), counted = static_cast<double>(cost);
  if (simulator::is_bound(formula))
    EXPECT_LE(counted, value + 1e-6) << formula << ", P=" << sizes.ranks << ", H=" << sizes.hosts;
  else
    EXPECT_NEAR(counted, value, 1e-6) << formula << ", P=" << sizes.ranks << ", H=" << sizes.hosts;
}

/// What the rank that has most of each has: rounds with a message, elements that it sends.
struct Cost {
  int64_t steps = 0;
  int64_t elements = 0;
};
Cost count_cost(const simulator::Call& call, const std::vector<Schedule>& schedules) {
  Cost most;
  for (Rank rank = 0; rank < call.size; rank++) {
    Cost cost;
    for (const Step& step : schedules[rank]) {
      if (step.send_to == rank) continue;
      if (step.send_to != kNobody || step.recv_from != kNobody) cost.steps++;
      if (step.send_to != kNobody) cost.elements += step.send.count;
    }
    most = {std::max(most.steps, cost.steps), std::max(most.elements, cost.elements)};
  }
  return most;
}

TEST_P(EveryRow, CostsWhatItsLineSays) {
  const ScheduleRow& row = GetParam();
  simulator::CostLine line = simulator::parse_cost_line(row.cost);
  Rank most = row.where == Where::kHosts ? kLargestSize / 2 : 1;
  for (Rank per_host = row.where == Where::kHosts ? 2 : 1; per_host <= most; per_host++)
    for (Rank size = 2 * per_host; size <= kLargestSize; size += per_host) {
      // Enough for every chunk to be as long as every other, in halves too.
      int64_t per_rank = 64, count = per_rank * size;
      std::vector<int64_t> counts = {count};
      if (!traits_of(row.collective).is_vector()) counts.assign(size, per_rank);
      if (row.collective == RC_BARRIER) counts.clear();
      Call call = simulator::make_call(row.collective, size,
                                       traits_of(row.collective).has_root ? size / 2 : 0, counts);
      if (row.where == Where::kHosts) call.levels = simulator::cluster_of(size, per_host, 0);
      Cost cost = count_cost(call, simulator::make_schedules(row, call));
      simulator::Sizes sizes = {static_cast<double>(size), static_cast<double>(size / per_host)};
      expect_cost(line.steps, static_cast<double>(count), sizes, cost.steps);
      expect_cost(line.bytes, static_cast<double>(count), sizes, cost.elements);
    }
}

// Whatever the ring order, the chain adds in rank order, and no result depends on later ranks.
TEST(Prefixes, AreCombinedInRankOrder) {
  for (Collective collective : {RC_SCAN, RC_EXSCAN})
    for (const char* name : {"chain", "recursive_doubling"}) {
      for (Rank size : {9, 6}) {
        std::vector<int64_t> counts = {3};
        std::vector<Rank> positions = simulator::shuffled_positions(size);
        for (Rank rank = 0; rank < size; rank++) {
          Problem problem{.rank = positions[rank], .size = size, .counts = counts};
          problem.positions = positions;
          std::vector<Rank> sources;  // in rank order, of what this rank receives
          for (const Step& step : find_schedule(collective, name)->make(problem))
            if (step.recv_from != kNobody)
              sources.push_back(static_cast<Rank>(std::ranges::find(positions, step.recv_from) -
                                                  positions.begin()));
          std::vector<Rank> expected;
          Rank first = collective == RC_EXSCAN;
          if (first && rank > 0) expected.push_back(rank - 1);
          for (Rank distance = 1; rank - distance >= first; distance *= 2) {
            expected.push_back(rank - distance);
            if (std::string_view(name) == "chain") break;
          }
          EXPECT_EQ(sources, expected) << name << ", rank " << rank << " of " << size;
        }
      }
    }
}

// Whichever rank it is, and where chunks lie in the order of ranks.
TEST(Binomial, TheRootOfChunksHasAsManyPeersAsASizeHasDigits) {
  for (Collective collective : {RC_GATHER, RC_SCATTER})
    for (Rank size = 2; size <= 40; size++)
      for (Rank root = 0; root < size; root++) {
        std::vector<int64_t> counts(size, 1);
        Problem problem{.rank = root, .size = size, .root = root, .counts = counts};
        std::set<Rank> peers;
        for (const Step& step : find_schedule(collective, "binomial")->make(problem))
          for (Rank peer : {step.send_to, step.recv_from})
            if (peer != kNobody) peers.insert(peer);
        EXPECT_LE(peers.size(), std::bit_width(static_cast<unsigned>(size - 1))) << size << root;
      }
}

TEST_P(EveryRow, ServesThousandsOfRanks) {
  const ScheduleRow& row = GetParam();
  constexpr Rank kSize = 4096;
  std::vector<int64_t> counts = {1 << 20};
  if (!traits_of(row.collective).is_vector()) counts.assign(kSize, 3);
  std::vector<Groups> levels = simulator::cluster_of(kSize, 8, 32);
  Problem problem = {.rank = 1234,
                     .size = kSize,
                     .root = 5,
                     .counts = counts,
                     .recv_counts = counts,
                     .levels = levels};
  Schedule schedule = row.make(problem);
  EXPECT_LE(schedule.size(), 2u * kSize);
  EXPECT_GE(schedule.size(), 12u);
}

/// The line of a row in the table of docs/algorithms.md.
std::string line_of(const ScheduleRow& row) {
  simulator::CostLine cost = simulator::parse_cost_line(row.cost);
  return fmt::format("| {} | `{}` | {} | {} | {} |", name_of(row.collective), row.name, cost.steps,
                     cost.bytes, name_of(row.where));
}

/// The lines of that table, without its head.
std::vector<std::string> documented_lines() {
  std::ifstream page(RINGCOLL_DOCS "/algorithms.md");
  std::vector<std::string> lines;
  bool in_table = false;
  for (std::string line; std::getline(page, line);) {
    if (in_table && line.starts_with("|")) lines.push_back(line);
    in_table = line.starts_with("| --") || (in_table && line.starts_with("|"));
  }
  return lines;
}

TEST_P(EveryRow, StandsInTheDocument) {
  std::vector<std::string> lines = documented_lines();
  EXPECT_EQ(std::ranges::count(lines, line_of(GetParam())), 1)
      << "docs/algorithms.md has to have once: " << line_of(GetParam());
}

TEST(Document, HasNoRowThatTheRegistryLacks) {
  std::set<std::string> expected;
  for (const ScheduleRow& row : schedules()) expected.insert(line_of(row));
  for (const std::string& line : documented_lines())
    EXPECT_TRUE(expected.contains(line))
        << "docs/algorithms.md has, and the registry has not: " << line;
}

TEST(Registry, HasARowForEveryCollectiveAcrossHosts) {
  for (int collective = 0; collective < RC_COLLECTIVE_COUNT; collective++) {
    bool found = false;
    for (const ScheduleRow& row : schedules())
      found |=
          row.collective == static_cast<Collective>(collective) && row.where == Where::kAnywhere;
    EXPECT_TRUE(found) << name_of(static_cast<Collective>(collective));
  }
}

TEST(Registry, FindsByName) {
  ASSERT_NE(find_schedule(RC_ALLREDUCE, "ring"), nullptr);
  EXPECT_EQ(find_schedule(RC_ALLREDUCE, "ring")->collective, RC_ALLREDUCE);
  EXPECT_EQ(find_schedule(RC_BARRIER, "ring"), nullptr);
  EXPECT_EQ(find_schedule(RC_ALLREDUCE, ""), nullptr);
  std::set<std::pair<int, std::string_view>> names;
  for (const ScheduleRow& row : schedules())
    EXPECT_TRUE(names.emplace(row.collective, row.name).second) << row.name << " twice";
}

TEST(EvenCounts, DifferByOneAndAddUp) {
  EXPECT_EQ(even_counts(10, 4), (std::vector<int64_t>{3, 2, 3, 2}));
  EXPECT_EQ(even_counts(0, 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(even_counts(2, 3), (std::vector<int64_t>{1, 1, 0}));
  int64_t large = (int64_t{1} << 40) + 1;
  std::vector<int64_t> counts = even_counts(large, 3);
  EXPECT_EQ(offsets_of(counts).back(), large);
}

// Hosts of two and of four ranks have one boundary in common, whatever the length: two lanes of
// which each host's ranks carry what they hold, and none of a single element.
TEST(EvenCounts, EqualPartsEndAtTheSameElement) {
  for (int64_t count = 0; count < 100; count++)
    for (Rank parts = 1; parts <= 6; parts++)
      for (Rank times = 1; times <= 4; times++) {
        auto few = offsets_of(even_counts(count, parts));
        auto many = offsets_of(even_counts(count, parts * times));
        for (Rank i = 0; i <= parts; i++)
          EXPECT_EQ(few[i], many[i * times]) << count << " in " << parts << " and " << times;
        EXPECT_EQ(std::ranges::max(even_counts(count, parts)), even_counts(count, parts)[0]);
      }
}

// In the round in which all that they send is there.
TEST(EarliestSends, DependOnWhatIsReceived) {
  auto earliest_of = [](Collective collective, std::string_view name, Rank size, Rank rank) {
    std::vector<int64_t> counts(size, 4);
    Problem problem = {.rank = rank, .size = size, .counts = counts, .recv_counts = counts};
    return earliest_sends(find_schedule(collective, name)->make(problem), rank);
  };
  using Rounds = std::vector<size_t>;
  EXPECT_EQ(earliest_of(RC_ALLREDUCE, "ring", 3, 1), (Rounds{0, 1, 2, 3}));
  EXPECT_EQ(earliest_of(RC_ALLREDUCE, "recursive_doubling", 4, 1), (Rounds{0, 1}));
  EXPECT_EQ(earliest_of(RC_ALLREDUCE, "direct", 4, 1), (Rounds{0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(earliest_of(RC_ALLREDUCE, "one_shot", 3, 2), (Rounds{0, 1, 2, 0, 0}));
  EXPECT_EQ(earliest_of(RC_ALLREDUCE, "one_shot", 3, 0), (Rounds{0, 0, 2, 3, 4}));
  EXPECT_EQ(earliest_of(RC_ALLTOALL, "direct", 4, 2), (Rounds{0, 0, 0, 0}));  // the first to itself
  EXPECT_EQ(earliest_of(RC_BROADCAST, "binomial", 4, 0), (Rounds{0, 0}));
  EXPECT_EQ(earliest_of(RC_BROADCAST, "binomial", 4, 2), (Rounds{0, 1}));
  EXPECT_EQ(earliest_of(RC_BARRIER, "dissemination", 4, 1), (Rounds{0, 1}));
}

TEST(EarliestSends, AreInTheirOrderAndFewToAPeer) {
  using Rounds = std::vector<size_t>;
  Schedule many(5, {.send_to = 1, .send = {0, 2}});
  EXPECT_EQ(earliest_sends(many, 0), (Rounds{0, 0, 0, 3, 4}));
  Schedule in_order = {{.recv_from = 1, .recv = {0, 2}},
                       {.send_to = 1, .send = {1, 2}},
                       {.send_to = 2, .send = {4, 2}},
                       {.send_to = 1, .send = {4, 2}}};
  EXPECT_EQ(earliest_sends(in_order, 0), (Rounds{0, 1, 0, 1}));
}

TEST(EarliestSends, GoByTheLastReceiptOfAnyPart) {
  using Rounds = std::vector<size_t>;
  // Ranges that touch what is received, at either end, and that take parts of several.
  Schedule received = {{.recv_from = 1, .recv = {2, 3}}, {.recv_from = 1, .recv = {7, 2}},
                       {.send_to = 2, .send = {0, 2}},   {.send_to = 3, .send = {5, 2}},
                       {.send_to = 4, .send = {4, 2}},   {.send_to = 5, .send = {0, 12}},
                       {.send_to = 6, .send = {9, 1}}};
  EXPECT_EQ(earliest_sends(received, 0), (Rounds{0, 1, 0, 0, 1, 2, 0}));
  Schedule again = {{.recv_from = 1, .recv = {0, 10}}, {.recv_from = 1, .recv = {4, 2}},
                    {.send_to = 2, .send = {0, 4}},    {.send_to = 3, .send = {6, 4}},
                    {.send_to = 4, .send = {5, 1}},    {.send_to = 5, .send = {3, 2}}};
  EXPECT_EQ(earliest_sends(again, 0), (Rounds{0, 1, 1, 1, 2, 2}));
}

TEST(Space, IsThatOfTheTable) {
  std::vector<int64_t> counts = {3, 0, 5}, received = {1, 1, 1};
  Problem problem = {.rank = 0, .size = 3, .root = 0, .counts = counts, .recv_counts = received};
  EXPECT_EQ(space_of(RC_ALLREDUCE, problem), 3);
  EXPECT_EQ(space_of(RC_ALLGATHER, problem), 8);
  EXPECT_EQ(space_of(RC_ALLTOALL, problem), 11);
  EXPECT_EQ(space_of(RC_BARRIER, problem), 0);
}

// The tests above are only as good as their judge: it has to notice what is wrong.
TEST(Simulator, NoticesWhatIsWrong) {
  Call call = simulator::make_call(RC_ALLREDUCE, 5, 0, {11});
  std::vector<Schedule> good =
      simulator::make_schedules(*find_schedule(RC_ALLREDUCE, "ring"), call);
  ASSERT_EQ(simulator::check_schedules(call, good), "");
  auto broken = [&](auto&& change) {
    std::vector<Schedule> schedules = good;
    change(schedules);
    return simulator::check_schedules(call, schedules);
  };
  EXPECT_EQ(broken([](auto& s) { s[2][1].send_to = 4; }),
            "rank 2, round 1: sends [0, 3) to rank 4, which combines [3, 5) from rank 3");
  EXPECT_EQ(broken([](auto& s) { s[2][1].send_to = 5; }),
            "rank 2, round 1: sends [0, 3) to rank 5, which is not there");
  EXPECT_NE(broken([](auto& s) { s[2].pop_back(); }), "");
  EXPECT_NE(broken([](auto& s) { s[0][1].combine = Combine::kCopy; }), "");
  EXPECT_NE(broken([](auto& s) { s[0][5].combine = Combine::kReduce; }), "");
  EXPECT_NE(broken([](auto& s) { s[3][2].send.count = 1; }), "");
  EXPECT_NE(broken([](auto& s) {
              for (auto& schedule : s) std::swap(schedule[0], schedule[1]);
            }),
            "");
}

// Any root that all ranks agree on would do for an allreduce, and rank 0 for all of them.
TEST(Simulator, NoticesALookAtTheRootWhereThereIsNone) {
  ScheduleRow row = allreduce_ring();
  row.make = [](const Problem& problem) {
    Circle circle(problem, problem.root);
    Chunks chunks = even_chunks(problem);
    return compose(ring_reduce_scatter(circle, chunks), ring_allgather(circle, chunks));
  };
  Call call = simulator::make_call(RC_ALLREDUCE, 5, 0, {11});
  EXPECT_NE(simulator::check_schedules(call, simulator::make_schedules(row, call)), "");
}

TEST(Simulator, PrintsRowsAndStepsInWords) {
  EXPECT_EQ(testing::PrintToString(*find_schedule(RC_ALLREDUCE, "direct")),
            "allreduce direct (one domain)");
  EXPECT_EQ(testing::PrintToString(Step{3, {4, 4}, 1, {0, 4}, Combine::kReduce}),
            "sends [4, 8) to rank 3, combines [0, 4) from rank 1");
  EXPECT_EQ(testing::PrintToString(Packing{{4, 4}, Storage::kBank1}), "[4, 8) to bank 1");
}

TEST(CostLine, IsEvaluated) {
  EXPECT_DOUBLE_EQ(simulator::evaluate("2n(P-1)/P", 12, {4}), 18);
  EXPECT_DOUBLE_EQ(simulator::evaluate("2ceil(lg P)-floor(lg P)", 0, {5}), 4);
  EXPECT_DOUBLE_EQ(simulator::evaluate("2n(1-1/2^floor(lg P))", 8, {5}), 12);
  EXPECT_DOUBLE_EQ(simulator::evaluate("ceil(lg P) + P-1", 0, {8}), 10);
  EXPECT_DOUBLE_EQ(simulator::evaluate("at most n(H-1)/H+R", 8, {8, 2}), 8);
  EXPECT_TRUE(simulator::is_bound("at most n"));
  EXPECT_FALSE(simulator::is_bound("n"));
  EXPECT_THROW(simulator::evaluate("2)", 0, {1}), std::invalid_argument);
  EXPECT_THROW(simulator::parse_cost_line("P-1"), std::invalid_argument);
}

}  // namespace
}  // namespace ringcoll

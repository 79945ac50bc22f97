// Where rows lie, and which ones are given up.
#include "table/rows.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "table/spec_testing.h"

namespace ringcoll {
namespace {

using Ids = std::vector<int64_t>;
using testing::sparse;

constexpr const char* kSum = R"({"rule": "sum"})";

TEST(IdIndex, FindsWhatAMapFinds) {
  std::mt19937_64 random(1);
  IdIndex index;
  std::map<int64_t, RowSlot> expected;
  for (int step = 0; step < 20000; step++) {
    // Few ids, so that there is always something to erase.
    const auto id = static_cast<int64_t>(random() % 300) - 150;
    if (expected.contains(id)) {
      index.erase(id);
      expected.erase(id);
    } else {
      index.reserve(expected.size() + 1);
      index.insert(id, static_cast<RowSlot>(step));
      expected[id] = static_cast<RowSlot>(step);
    }
    ASSERT_EQ(index.size(), expected.size());
    if (step % 50 != 0) continue;
    for (int64_t one = -151; one <= 151; one++) {
      const auto found = expected.find(one);
      ASSERT_EQ(index.find(one),
                found == expected.end() ? std::nullopt : std::optional(found->second));
    }
  }
}

TEST(IdIndex, TakesTheEndsOfTheRange) {
  IdIndex index;
  EXPECT_EQ(index.find(0), std::nullopt);
  index.reserve(2);
  index.insert(INT64_MIN, 1);
  index.insert(INT64_MAX, 2);
  EXPECT_EQ(index.find(INT64_MIN), RowSlot{1});
  EXPECT_EQ(index.find(INT64_MAX), RowSlot{2});
  EXPECT_EQ(index.find(0), std::nullopt);
}

TEST(IdIndex, FindsTheIdsOfAShardAsFast) {
  for (const uint64_t shards : {1, 4, 64, 256}) {
    IdIndex index;
    Ids ids;
    for (int64_t id = 0; ids.size() < 8000; id++)
      if (spread(static_cast<uint64_t>(id)) % shards == shards - 1) ids.push_back(id);
    index.reserve(ids.size());
    for (const int64_t id : ids) index.insert(id, 0);
    size_t probes = 0;
    for (const int64_t id : ids) probes += index.probes(id);
    EXPECT_LT(probes, 2 * ids.size()) << shards;  // 1.5 are expected of a half full index
  }
}

/// Memory that counts what is taken of it.
class Counted : public std::pmr::memory_resource {
 public:
  size_t taken = 0;

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    taken += bytes;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    taken -= bytes;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

void use(Rows& rows, const Ids& ids) {
  rows.reserve(ids.size());
  for (const int64_t id : ids) rows.hold(id);
  for (const int64_t id : ids) rows.use(id);
  rows.end_step();
}

std::set<int64_t> ids_of(const Rows& rows) {
  std::set<int64_t> ids;
  rows.each([&](int64_t id, RowSlot) { ids.insert(id); });
  EXPECT_EQ(ids.size(), rows.size());
  return ids;
}

TEST(Rows, ValuesLieInTheGivenMemoryAndDoNotMove) {
  Counted memory;
  const TableSpec spec = sparse(R"({"rule": "adam"})");
  {
    Rows rows(spec, {}, &memory);
    EXPECT_EQ(memory.taken, 0);
    use(rows, {7});
    const size_t slab = memory.taken;
    EXPECT_GT(slab, 0);
    const std::byte* value = rows.value(*rows.find(7));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(value) % 64, 0);
    for (int64_t id = 0; id < 400000; id++) use(rows, {id});
    EXPECT_GE(memory.taken, 3 * slab);
    EXPECT_EQ(memory.taken % slab, 0);
    EXPECT_EQ(rows.value(*rows.find(7)), value);
    std::set<const std::byte*> places;
    rows.each([&](int64_t, RowSlot slot) { places.insert(rows.value(slot)); });
    EXPECT_EQ(places.size(), 400000);
  }
  EXPECT_EQ(memory.taken, 0);
}

TEST(Rows, OfADenseShardAreAllThere) {
  const TableSpec spec = TableSpec::parse(
      R"({"name": "w", "dtype": "float32", "shape": [7], "stretch": 2, "rule": {"rule": "sum"},
          "initial": {"kind": "constant", "value": 3}})");
  Rows rows(spec, {1, 3}, std::pmr::new_delete_resource());
  rows.make_all();
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{1, 2, 3}));
  EXPECT_EQ(rows.find(0), std::nullopt);
  EXPECT_EQ(rows.find(4), std::nullopt);
  const Row last = rows.row(*rows.find(3));
  EXPECT_EQ(last.count, 1);
  EXPECT_EQ(static_cast<float*>(last.value)[0], 3);
  // One array: a row begins where the one before it ends.
  EXPECT_EQ(rows.value(*rows.find(2)) - rows.value(*rows.find(1)), 8);
}

TEST(Rows, TheOneWhoseUseIsTheLongestAgoIsGivenUp) {
  const TableSpec spec = sparse(kSum, R"(, "max_rows": 3, "evict": "age")");
  Rows rows(spec, {}, std::pmr::new_delete_resource());
  use(rows, {1, 2, 3});
  use(rows, {1});
  use(rows, {4});
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{1, 3, 4}));
  rows.touch(*rows.find(3));
  use(rows, {5});
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{3, 4, 5}));
  EXPECT_EQ(rows.evicted(), 2);
}

TEST(Rows, TheOneWithTheFewestUsesIsGivenUp) {
  const TableSpec spec = sparse(kSum, R"(, "max_rows": 3, "evict": "use")");
  Rows rows(spec, {}, std::pmr::new_delete_resource());
  use(rows, {1, 2, 3});
  use(rows, {1, 2});
  use(rows, {1});
  use(rows, {4});  // 3 had one use
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{1, 2, 4}));
  use(rows, {5});  // 4 has one use
  use(rows, {5});
  use(rows, {6});  // 2 and 5 have two uses, of 2 the last is longer ago
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{1, 5, 6}));
}

TEST(Rows, OfAStepAreNotGivenUpForOneAnother) {
  for (const char* evict : {"age", "use"}) {
    const TableSpec spec = sparse(kSum, fmt::format(R"(, "max_rows": 4, "evict": "{}")", evict));
    Rows rows(spec, {}, std::pmr::new_delete_resource());
    use(rows, {10, 11});
    for (int i = 0; i < 3; i++) use(rows, {20, 21});
    use(rows, {1, 2, 10});  // 10 is as old as 11, and belongs to the step
    EXPECT_EQ(ids_of(rows).contains(10), true) << evict;
    EXPECT_EQ(ids_of(rows).contains(11), false) << evict;
    EXPECT_EQ(rows.counts(*rows.find(10)).uses, 2);
    use(rows, {30, 31, 32, 33, 34, 35});  // more than the table may have
    EXPECT_EQ(ids_of(rows), (std::set<int64_t>{32, 33, 34, 35})) << evict;
  }
}

TEST(Rows, ANewRowKeepsNothingOfTheOneBeforeIt) {
  const TableSpec spec = sparse(R"({"rule": "adagrad", "initial_accumulator_value": 2})",
                                R"(, "max_rows": 1, "initial": {"kind": "constant", "value": 5})");
  Rows rows(spec, {}, std::pmr::new_delete_resource());
  for (int64_t id = 0; id < 3; id++) {
    use(rows, {id});
    const Row row = rows.row(*rows.find(id));
    auto* value = static_cast<float*>(row.value);
    auto* state = static_cast<float*>(row.state[0]);
    EXPECT_EQ(value[1], 5);
    EXPECT_EQ(state[1], 2);
    EXPECT_EQ(*row.tally, RowTally{});
    EXPECT_EQ(rows.counts(*rows.find(id)).uses, 1);
    value[1] = state[1] = 9;
    row.tally->pushes = 4;
  }
}

TEST(Rows, ThatAreInsertedAreGivenUpAsTheyWouldHaveBeen) {
  const TableSpec spec = sparse(kSum, R"(, "max_rows": 3)");
  Rows rows(spec, {}, std::pmr::new_delete_resource());
  rows.reserve(3);
  rows.insert(1, {.uses = 1, .last_use = 7});
  rows.insert(2, {.uses = 9, .last_use = 5});
  rows.insert(3, {.uses = 2, .last_use = 6});
  rows.set_uses(7);
  use(rows, {4, 2});  // 3 was used before 1
  EXPECT_EQ(ids_of(rows), (std::set<int64_t>{1, 2, 4}));
  EXPECT_EQ(rows.counts(*rows.find(2)).uses, 10);
  EXPECT_EQ(rows.counts(*rows.find(2)).last_use, 9);
  EXPECT_EQ(rows.uses(), 9);
}

TEST(Rows, EvictAsAListWouldDoIt) {
  for (const Evict evict : {Evict::kAge, Evict::kUse}) {
    TableSpec spec = sparse(kSum, R"(, "max_rows": 20)");
    spec.evict = evict;
    Rows rows(spec, {}, std::pmr::new_delete_resource());
    std::map<int64_t, std::pair<int64_t, int64_t>> expected;  // id -> uses, if they count, and last
    std::mt19937_64 random(2);
    for (int64_t step = 1; step <= 5000; step++) {
      const auto id = static_cast<int64_t>(random() % 40);
      if (!expected.contains(id) && expected.size() == 20)
        expected.erase(
            std::ranges::min_element(expected, {}, [](const auto& one) { return one.second; }));
      auto& [uses, last] = expected[id];
      uses += evict == Evict::kUse ? 1 : 0;
      last = step;
      use(rows, {id});
      std::set<int64_t> ids;
      for (const auto& [one, unused] : expected) ids.insert(one);
      ASSERT_EQ(ids_of(rows), ids) << step;
    }
  }
}

}  // namespace
}  // namespace ringcoll

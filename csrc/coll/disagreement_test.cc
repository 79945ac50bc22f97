// What ranks say when they disagree about a call, or one makes none: all ways to disagree that a
// table generates, over every transport, with messages of every kind.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "coll/world_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

[[maybe_unused]] auto* const kDevice =
    ::testing::AddGlobalTestEnvironment(new testing::RdmaForTests);

using testing::call_of;
using testing::Member;
using testing::run;

// Elements of 4 bytes: none, which no message is sent for, and on both sides of what goes with its
// flag (16 B), inline (1 KiB), in a buffer that is handed over (128 KiB), from the caller's memory
// (16 and 64 KiB), and in one piece.
constexpr int64_t kCounts[] = {0, 1, 4, 5, 250, 300, 5'000, 20'000, 40'000, 300'000, 1'500'000};

/// What one rank passes.
struct Form {
  Collective collective = RC_BARRIER;
  int64_t count = 0;
  DataType dtype = RC_FLOAT32;
  ReduceOp op = RC_SUM;
  Rank root = 0;
  double prescale = 1, postscale = 1;
  std::vector<int64_t> counts = {};
  std::vector<int64_t> recv_counts = {};
};

/// What all ranks pass but one, what that one does, and what the error says of it.
struct Disagreement {
  std::string about;
  Form all, one;
  std::vector<std::string> texts;
};

class Generator {
 public:
  Generator(Collective collective, Rank size, int64_t count, Rank deviating)
      : size_(size), deviating_(deviating), traits_(traits_of(collective)) {
    form_.collective = collective;
    if (traits_.has_data()) form_.count = count;
  }

  std::vector<Disagreement> all() {
    collectives();
    if (!traits_.has_data()) return std::move(found_);
    add("the count", [](Form& f) { f.count++; },
        {of_elements(form_.count), of_elements(form_.count + 1)});
    add("the type", [](Form& f) { f.dtype = RC_INT32; }, {"float32", "int32"});
    add("the type", [](Form& f) { f.dtype = RC_FLOAT64; }, {"float32", "float64"});
    add("the prescale", [](Form& f) { f.prescale = 2; }, {"prescale 1", "prescale 2"});
    add("the postscale", [](Form& f) { f.postscale = 0.5; }, {"postscale 1", "postscale 0.5"});
    if (traits_.reduces()) {
      add("the op", [](Form& f) { f.op = RC_MAX; }, {"sum", "max"});
      ReduceOp third = traits_.is_prefix() ? RC_PRODUCT : RC_AVERAGE;
      add("the op", [&](Form& f) { f.op = third; }, {"sum", name_of(third)});
    }
    for (Rank root = 1; root < size_ && traits_.has_root; root++)
      add("the root", [&](Form& f) { f.root = root; }, {"root 0", fmt::format("root {}", root)});
    if (traits_.exchanges())
      splits();
    else if (traits_.takes_counts())
      counts();
    return std::move(found_);
  }

 private:
  template <typename Change>
  void add(std::string about, Change&& change, std::vector<std::string> texts) {
    Form changed = form_;
    change(changed);
    found_.push_back({std::move(about), form_, std::move(changed), std::move(texts)});
  }

  // "of 12 ": as many as all ranks have together.
  std::string of_elements(int64_t count) const {
    return fmt::format(" of {} ", traits_.is_vector() ? count : count * size_);
  }

  void collectives() {
    for (int i = 0; i < RC_COLLECTIVE_COUNT; i++) {
      auto other = static_cast<Collective>(i);
      if (other == form_.collective) continue;
      add("the collective", [&](Form& f) { f.collective = other; },
          {std::string(name_of(form_.collective)) + " #1", std::string(name_of(other)) + " #1"});
    }
  }

  void counts() {
    std::vector<int64_t> rising(size_);
    std::iota(rising.begin(), rising.end(), form_.count);
    std::string text = fmt::format("counts {}", fmt::join(rising, ", "));
    add("the count", [&](Form& f) { f.counts = rising; }, {"counts all equal", text});
    form_.counts = rising;
    std::vector<int64_t> falling(rising.rbegin(), rising.rend());
    add("the counts", [&](Form& f) { f.counts = falling; },
        {text, fmt::format("counts {}", fmt::join(falling, ", "))});
    form_.counts.assign(size_, form_.count);
    add("the counts", [&](Form& f) { f.counts.clear(); }, {"counts all equal"});
  }

  // The one sends the next rank more than that expects, less, or nothing; or expects nothing.
  void splits() {
    std::vector<int64_t> even(size_, form_.count);
    add("the counts", [&](Form& f) { f.counts = f.recv_counts = even; },
        {"counts all equal", "counts each rank's own"});
    if (form_.count == 0) return;
    form_.counts = form_.recv_counts = even;
    size_t next = (deviating_ + 1) % size_;
    auto text = [](int64_t sent, int64_t expected) {
      return std::vector<std::string>{fmt::format("sends {} elements", sent),
                                      fmt::format("expects {}:", expected)};
    };
    for (int64_t sent : {form_.count + 1, form_.count - 1, int64_t{0}})
      add("the splits", [&](Form& f) { f.counts[next] = sent; }, text(sent, form_.count));
    add("the splits", [&](Form& f) { f.recv_counts[next] = 0; }, text(form_.count, 0));
  }

  Rank size_, deviating_;
  const CollectiveTraits& traits_;
  Form form_;
  std::vector<Disagreement> found_;
};

// In and out have room for what any rank may pass.
void make(Member& m, const Form& form) {
  auto sum = [](const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  };
  int64_t most = std::max({form.count * m.size, sum(form.counts), sum(form.recv_counts)});
  std::vector<double> in(most + 1), out(most + 1);
  rc_buffer buffer{in.data(), out.data(), form.count};
  rc_call raw =
      call_of(form.collective, form.dtype, form.op, {&buffer, form.collective != RC_BARRIER});
  raw.root = form.root;
  raw.prescale = form.prescale;
  raw.postscale = form.postscale;
  if (!form.counts.empty()) raw.counts = form.counts.data();
  if (!form.recv_counts.empty()) raw.recv_counts = form.recv_counts.data();
  run(m, raw);
}

/// Groups of all ranks of a world, one after the other: a group that has failed is of no use.
class Groups {
 public:
  explicit Groups(Rank size) : offers_(size), together_(size) {}

  std::unique_ptr<Communicator> next(Member& m) {
    std::vector<Rank> all(m.size);
    std::iota(all.begin(), all.end(), 0);
    std::unique_ptr<Group> group = m.comm.part(all);
    offers_[m.rank] = group->offer();
    wait();
    group->join(offers_);
    wait();
    return std::make_unique<Communicator>(std::move(group), "group");
  }
  void wait() { together_.arrive_and_wait(); }

 private:
  std::vector<Group::Offer> offers_;
  std::barrier<> together_;
};

/// The error of a rank that makes the call and then others, fewer than a word of CallWatch has, or
/// none.
std::optional<Error> error_of(Communicator& comm, const Form& form, bool goes_on) {
  Executor executor(comm);
  Member member{comm, executor, comm.rank(), comm.size()};
  try {
    make(member, form);
    constexpr int kMostCalls = 30;
    for (int i = 0; i < kMostCalls && goes_on; i++)
      run(member, call_of(RC_BARRIER, RC_UINT8, RC_SUM, {}));
    Deadline limit(std::chrono::seconds(5));
    while (!comm.poisoned() && !limit.passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm.throw_if_poisoned();
  } catch (const Error& error) {
    return error;
  }
  return {};
}

void expect_mismatch(const Disagreement& d, const std::optional<Error>& error) {
  ASSERT_TRUE(error) << "no error";
  EXPECT_EQ(error->code(), Code::kMismatch) << error->what();
  std::string text = error->what();
  std::vector<std::string> parts = d.texts;
  parts.push_back(d.about);
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), text.npos) << part << ": " << text;
}

class Disagreements : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string transport() const { return std::get<0>(GetParam()); }
  Rank size() const { return std::get<1>(GetParam()); }

  /// A sample in an order of chance, each with a count, the rank that deviates, and what ranks do
  /// afterwards. TEST_DISAGREEMENTS: of how many.
  struct Case {
    Disagreement disagreement;
    Rank deviating;
    bool goes_on;
  };
  std::vector<Case> cases() const {
    const char* given = std::getenv("TEST_DISAGREEMENTS");
    const size_t most = given ? std::strtoul(given, nullptr, 10) : 40;
    std::vector<Case> found;
    for (int64_t count : kCounts)
      for (Rank deviating = 0; deviating < size(); deviating++)
        for (int i = 0; i < RC_COLLECTIVE_COUNT; i++)
          for (bool goes_on : {false, true})
            for (auto& each : Generator(static_cast<Collective>(i), size(), count, deviating).all())
              found.push_back({std::move(each), deviating, goes_on});
    std::ranges::shuffle(found, std::mt19937(static_cast<unsigned>(size()) + transport()[0]));
    found.resize(std::min(most, found.size()));
    return found;
  }
};

TEST_P(Disagreements, AreErrorsOfAllRanksWithinASecond) {
  Config config = testing::test_config(transport());
  config.timeout_s = 20;
  const std::vector<Case> all = cases();
  Groups groups(size());
  std::vector<Duration> took(all.size() * static_cast<size_t>(size()));  // by each rank
  testing::run_world(size(), config, [&](Member& m) {
    for (size_t i = 0; i < all.size(); i++) {
      const Disagreement& d = all[i].disagreement;
      std::unique_ptr<Communicator> comm = groups.next(m);
      auto begun = Clock::now();
      const Form& form = m.rank == all[i].deviating ? d.one : d.all;
      std::optional<Error> error = error_of(*comm, form, all[i].goes_on);
      took[i * static_cast<size_t>(size()) + static_cast<size_t>(m.rank)] = Clock::now() - begun;
      SCOPED_TRACE(fmt::format("{}: {} of {} and {} of {}, rank {} deviates, they {}", d.about,
                               name_of(d.all.collective), d.all.count, name_of(d.one.collective),
                               d.one.count, all[i].deviating, all[i].goes_on ? "go on" : "stop"));
      expect_mismatch(d, error);
      groups.wait();
    }
  });
  std::ranges::sort(took);
  RecordProperty("slowest_ms", static_cast<int>(to_seconds(took.back()) * 1e3));
  RecordProperty("later_than_a_second",
                 static_cast<int>(std::ranges::count_if(
                     took, [](Duration d) { return d > std::chrono::seconds(1); })));
  EXPECT_LT(took[took.size() / 2], std::chrono::seconds(1));
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Disagreements,
                         ::testing::Combine(::testing::Values("shm", "tcp", "verbs"),
                                            ::testing::Values(2, 3)),
                         [](const auto& of) {
                           return fmt::format("{}_{}", std::get<0>(of.param),
                                              std::get<1>(of.param));
                         });

// Where a rank has its memory is its own business, and so is when it gives up.
TEST(Executor, RanksNeedNotBeAlikeInWhatIsTheirs) {
  for (const char* transport : {"shm", "tcp", "verbs"})
    testing::run_world(3, testing::test_config(transport), [](Member& m) {
      for (int64_t count : kCounts) {
        std::vector<float> in(count, 1), elsewhere(count);
        std::vector<float>& out = m.rank == 1 ? in : elsewhere;
        rc_buffer buffers[] = {{in.data(), out.data(), count / 2},
                               {in.data() + count / 2, out.data() + count / 2, count - count / 2}};
        rc_buffer whole{in.data(), out.data(), count};
        rc_call raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&whole, 1});
        if (m.rank == 2) raw = call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, buffers);
        raw.timeout_s = m.rank == 0 ? 0 : 50;
        run(m, raw);
        ASSERT_EQ(std::ranges::count(out, 3.0F), count);
      }
    });
}

TEST(Executor, ASilentPeerIsATimeoutThatNamesIt) {
  Config config = testing::test_config("shm");
  config.timeout_s = 1.5;  // also of making the communicators
  auto errors = testing::run_ranks(3, config, [&](Member& m) {
    if (m.rank == 2) {  // alive, but never calls
      std::this_thread::sleep_for(std::chrono::milliseconds(4500));
      m.comm.throw_if_poisoned();
      return;
    }
    float value = 1;
    rc_buffer buffer{&value, &value, 1};
    run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
  });
  for (Rank r = 0; r < 3; r++) {
    ASSERT_TRUE(errors[r]) << r;
    EXPECT_EQ(errors[r]->code(), Code::kTimeout) << errors[r]->what();
    EXPECT_EQ(errors[r]->rank(), 2) << errors[r]->what();
  }
}

TEST(Executor, APeerThatLeavesIsLostOnAllRanks) {
  for (std::string transport : {"shm", "tcp"}) {
    auto errors = testing::run_ranks(3, testing::test_config(transport), [&](Member& m) {
      float value = 1;
      rc_buffer buffer{&value, &value, 1};
      run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
      if (m.rank == 1) return;
      run(m, call_of(RC_ALLREDUCE, RC_FLOAT32, RC_SUM, {&buffer, 1}));
    });
    EXPECT_FALSE(errors[1]);
    for (Rank r : {0, 2}) {
      ASSERT_TRUE(errors[r]) << transport << r;
      EXPECT_EQ(errors[r]->code(), Code::kPeerLost) << transport << ": " << errors[r]->what();
      EXPECT_EQ(errors[r]->rank(), 1) << transport << ": " << errors[r]->what();
    }
  }
}

}  // namespace
}  // namespace ringcoll

// Every collective × schedule × transport × size × count against a reference, in place, scaled, and
// neither.
// Both registries are iterated: a new schedule or transport is tested unasked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "coll/world_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

[[maybe_unused]] auto* const kDevice =
    ::testing::AddGlobalTestEnvironment(new testing::RdmaForTests);

using testing::Bytes;
using testing::Member;

constexpr DataType kType = RC_INT32;
constexpr ReduceOp kOp = RC_SUM;
constexpr double kPrescale = 2, kPostscale = 3;

enum class Variant { kPlain, kInPlace, kScaled };

// One collective call of one rank: its buffers, the call, and what must come out.
class Trial {
 public:
  Trial(Member& m, const ScheduleRow& row, Rank root, Variant variant)
      : m_(m),
        collective_(row.collective),
        traits_(traits_of(row.collective)),
        equal_counts_(row.equal_counts),
        root_(root),
        in_place_(variant == Variant::kInPlace),
        scaled_(variant == Variant::kScaled) {}

  void run(std::vector<int64_t> counts) {
    counts_ = std::move(counts);
    total_ = std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
    first_ = std::accumulate(counts_.begin(), counts_.begin() + m_.rank, int64_t{0});
    if (!traits_.has_data()) return call(nullptr, nullptr, 0, false);
    if (traits_.is_vector()) return vector();
    if (traits_.exchanges()) return alltoall();
    return traits_.gathers() ? gathered() : scattered();
  }

 private:
  static Bytes filled(int64_t count, auto&& value) {
    Bytes bytes(count * size_of(kType));
    for (int64_t i = 0; i < count; i++) testing::put(kType, bytes, i, value(i));
    return bytes;
  }

  void expect(const Bytes& bytes, int64_t count, auto&& value) {
    for (int64_t i = 0; i < count; i++) {
      double want = value(i), got = testing::get(kType, bytes, i);
      if (want == got) continue;
      ADD_FAILURE() << name_of(collective_) << " root " << root_ << " rank " << m_.rank << " of "
                    << m_.size << " count " << total_ << " in place " << in_place_ << " scaled "
                    << scaled_ << ": element " << i << " is " << got << ", not " << want;
      return;
    }
  }

  void expect_result(const Bytes& output, int64_t count, auto&& value) {
    double scale = scaled_ ? kPrescale * kPostscale : 1;
    expect(output, count, [&](int64_t i) { return scale * value(i); });
  }

  void call(const void* input, void* output, int64_t count, bool with_counts) {
    rc_buffer buffer{input, output, count};
    rc_call raw{};
    raw.struct_size = sizeof raw;
    raw.collective = collective_;
    raw.dtype = kType;
    raw.op = kOp;
    raw.root = root_;
    raw.prescale = scaled_ ? kPrescale : 1;
    raw.postscale = scaled_ ? kPostscale : 1;
    raw.buffers = &buffer;
    raw.buffer_count = traits_.has_data() ? 1 : 0;
    if (with_counts) raw.counts = counts_.data();
    if (with_counts && traits_.exchanges()) raw.recv_counts = recv_counts_.data();
    m_.executor.run(check_call(raw, m_.rank, m_.size));
  }

  void vector() {
    bool is_root = m_.rank == root_;
    auto mine = [&](int64_t i) { return testing::contribution(kOp, m_.rank, i); };
    Bytes input = filled(total_, mine), output = filled(total_, [](int64_t) { return 77; });
    if (in_place_) output = input;
    const void* in = in_place_ ? output.data() : input.data();
    bool no_output = traits_.writes == Whose::kRoot && !is_root;
    call(in, no_output ? nullptr : output.data(), total_, false);
    if (!no_output)
      expect_result(output, total_, [&](int64_t i) {
        if (!traits_.reduces()) return testing::contribution(kOp, root_, i);
        Rank inputs = traits_.is_prefix() ? m_.rank + !traits_.excludes_own() : m_.size;
        return inputs > 0 ? testing::combined(kOp, kType, inputs, i) : 0;
      });
    if (!in_place_) expect(input, total_, mine);
  }

  void gathered() {
    int64_t own = counts_[m_.rank];
    bool whole = !traits_.has_root || m_.rank == root_;
    auto mine = [&](int64_t i) { return testing::contribution(kOp, m_.rank, i); };
    Bytes input = filled(own, mine);
    Bytes output(whole ? total_ * size_of(kType) : 0);
    const void* in = input.data();
    if (in_place_ && whole && own) {
      std::memcpy(output.data() + first_ * size_of(kType), input.data(), input.size());
      in = output.data() + first_ * size_of(kType);
    }
    call(in, output.data(), own, true);
    expect(input, own, mine);
    if (!whole) return;
    std::vector<double> want;
    for (Rank r = 0; r < m_.size; r++)
      for (int64_t i = 0; i < counts_[r]; i++) want.push_back(testing::contribution(kOp, r, i));
    expect_result(output, total_, [&](int64_t i) { return want[i]; });
  }

  void scattered() {
    bool reduces = traits_.reduces(), whole = reduces || m_.rank == root_;
    int64_t own = counts_[m_.rank];
    auto mine = [&](int64_t i) { return testing::contribution(kOp, m_.rank, i); };
    Bytes input = filled(whole ? total_ : 0, mine), output(own * size_of(kType));
    bool in_place = in_place_ && whole;
    std::byte* place = input.data() + first_ * size_of(kType);
    call(input.data(), in_place ? place : output.data(), own, true);
    if (in_place) std::copy_n(place, output.size(), output.begin());
    expect_result(output, own, [&](int64_t i) {
      return reduces ? testing::combined(kOp, kType, m_.size, first_ + i)
                     : testing::contribution(kOp, root_, first_ + i);
    });
    auto replaced = [&](int64_t i) { return in_place && i >= first_ && i < first_ + own; };
    if (whole)
      expect(input, total_,
             [&](int64_t i) { return replaced(i) ? testing::get(kType, input, i) : mine(i); });
  }

  // Rank a sends counts_[(a + b) % size] elements to rank b.
  void alltoall() {
    auto between = [&](Rank a, Rank b) { return counts_[(a + b) % m_.size]; };
    std::vector<int64_t> given = counts_, sends;
    recv_counts_.clear();
    for (Rank r = 0; r < m_.size; r++) {
      sends.push_back(between(m_.rank, r));
      recv_counts_.push_back(between(r, m_.rank));
    }
    int64_t out = std::accumulate(recv_counts_.begin(), recv_counts_.end(), int64_t{0});
    Bytes input, output(out * size_of(kType));
    auto value = [](Rank a, Rank b, int64_t i) { return a * 1000003.0 + b * 1009 + i % 997; };
    for (Rank r = 0; r < m_.size; r++) {
      Bytes block = filled(sends[r], [&](int64_t i) { return value(m_.rank, r, i); });
      input.insert(input.end(), block.begin(), block.end());
    }
    counts_ = sends;
    if (in_place_ && sends == recv_counts_) {
      output = input;
      call(output.data(), output.data(), sends[0], !equal_counts_);
    } else {
      call(input.data(), output.data(), sends[0], !equal_counts_);
    }
    counts_ = given;
    std::vector<double> want;
    for (Rank r = 0; r < m_.size; r++)
      for (int64_t i = 0; i < recv_counts_[r]; i++) want.push_back(value(r, m_.rank, i));
    expect_result(output, out, [&](int64_t i) { return want[i]; });
  }

  Member& m_;
  Collective collective_;
  const CollectiveTraits& traits_;
  bool equal_counts_;  // and none are given
  Rank root_;
  bool in_place_;
  bool scaled_;
  std::vector<int64_t> counts_, recv_counts_;
  int64_t total_ = 0, first_ = 0;
};

// 0, 1, around the number of ranks, a prime, and more than several pieces; even, uneven and with
// empty chunks.
std::vector<std::vector<int64_t>> cases(const ScheduleRow& row, Rank size) {
  std::vector<std::vector<int64_t>> list;
  if (row.equal_counts) {
    for (int64_t each : {0, 1, 7, 3001}) list.emplace_back(size, each);
    return list;
  }
  for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{size} - 1, int64_t{size}, int64_t{size} + 1,
                    int64_t{1009}, int64_t{40000}}) {
    list.push_back(even_counts(n, size));
    std::vector<int64_t> uneven(size, 0);
    for (Rank r = 0; r < size; r++) uneven[r] = r % 3 == 1 ? 0 : n / size * (r % 4);
    if (n > size) list.push_back(uneven);
  }
  return list;
}

void every_case(Member& m, std::string_view algorithm) {
  for (const ScheduleRow& row : schedules()) {
    if (row.name != algorithm) continue;
    std::set<Rank> roots = {0};
    if (traits_of(row.collective).has_root) roots.insert({m.size / 2, m.size - 1});
    for (Rank root : roots)
      for (const auto& counts : cases(row, m.size)) {
        Trial(m, row, root, Variant::kPlain).run(counts);
        Trial(m, row, root, Variant::kInPlace).run(counts);
        bool long_enough = std::ranges::max(counts) > 100;  // to be sent as it lies, or in pieces
        if (long_enough) Trial(m, row, root, Variant::kScaled).run(counts);
      }
  }
}

using Sizes = std::vector<Rank>;

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, std::string, Sizes>> {};

TEST_P(Conformance, EveryCollectiveSizeAndCount) {
  auto [transport, algorithm, sizes] = GetParam();
  Config config = testing::test_config(transport, algorithm);
  config.segment_bytes = 16 << 10;  // several pieces for the largest counts
  config.arena_bytes = 1 << 20;
  for (Rank size : sizes)
    testing::run_world(size, config, [&](Member& m) { every_case(m, algorithm); });
}

// The same over hosts: of two ranks, of one, two and three, and of ranks that lie crosswise.
class ConformanceOverHosts : public ::testing::TestWithParam<std::string> {};

TEST_P(ConformanceOverHosts, EveryCollectiveSizeAndCount) {
  Config config = testing::test_config("auto", GetParam());
  config.segment_bytes = 16 << 10;
  config.arena_bytes = 1 << 20;
  const std::vector<std::function<int(Rank)>> clusters = {
      [](Rank r) { return r / 2; },
      [](Rank r) { return r < 1   ? 0
                          : r < 3 ? 1
                                  : 2 + (r - 3) / 3; },
      [](Rank r) { return r % 2; },
  };
  for (Rank size : {2, 4, 5, 7})
    for (const auto& host : clusters)
      testing::run_world(
          size, config, [&](Member& m) { every_case(m, GetParam()); },
          [&](Rank rank) { return "host" + std::to_string(host(rank)); });
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names;
  for (const TransportRow& row : transports()) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> algorithm_names() {
  std::set<std::string> names;
  for (const ScheduleRow& row : schedules()) names.emplace(row.name);
  return {names.begin(), names.end()};
}

auto everything_with(Sizes sizes) {
  return ::testing::Combine(::testing::ValuesIn(transport_names()),
                            ::testing::ValuesIn(algorithm_names()),
                            ::testing::Values(std::move(sizes)));
}

std::string test_name(std::string name) {
  std::ranges::replace(name, '/', '_');
  return name;
}

std::string name_of_case(const ::testing::TestParamInfo<Conformance::ParamType>& info) {
  return std::get<0>(info.param) + "_" + test_name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Registry, Conformance, everything_with({1, 2, 3, 4, 5, 7, 8}),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Exhaustive, Conformance, everything_with({6, 9, 16}), name_of_case);
INSTANTIATE_TEST_SUITE_P(Registry, ConformanceOverHosts, ::testing::ValuesIn(algorithm_names()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ringcoll

// Every rule against plain loops written here, on every instruction set that this machine has.
#include "rules/rule.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/error_testing.h"
#include "reduce/halves_testing.h"
#include "reduce/targets_testing.h"
#include "rules/float_environment.h"

namespace ringcoll {
namespace {

using testing::error_of;
using testing::Half;
using testing::kBfloat16;
using testing::kFloat16;

class Rules : public testing::EachTarget {};
INSTANTIATE_TEST_SUITE_P(Target, Rules, ::testing::ValuesIn(testing::all_targets()),
                         testing::target_text);

constexpr std::array<DataType, 4> kFloats = {RC_FLOAT16, RC_BFLOAT16, RC_FLOAT32, RC_FLOAT64};
constexpr std::array<int64_t, 6> kCounts = {0, 1, 7, 64, 1000, 4097};

bool is_half(DataType dtype) { return dtype == RC_FLOAT16 || dtype == RC_BFLOAT16; }

// ---- arrays of any floating-point type, read and written by their definition

const Half& half_of(DataType dtype) { return dtype == RC_FLOAT16 ? kFloat16 : kBfloat16; }

double decoded(DataType dtype, const uint8_t* from) {
  if (dtype == RC_FLOAT64) {
    double number;
    std::memcpy(&number, from, sizeof number);
    return number;
  }
  if (dtype == RC_FLOAT32) {
    float number;
    std::memcpy(&number, from, sizeof number);
    return number;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return half_of(dtype).value(bits);
}

/// Precondition: a 16-bit number is no NaN.
void encode(DataType dtype, double number, uint8_t* to) {
  if (dtype == RC_FLOAT64) {
    std::memcpy(to, &number, sizeof number);
  } else if (dtype == RC_FLOAT32) {
    const auto narrow = static_cast<float>(number);
    std::memcpy(to, &narrow, sizeof narrow);
  } else {
    const uint16_t bits = half_of(dtype).nearest(number);
    std::memcpy(to, &bits, sizeof bits);
  }
}

/// `number`, rounded to the type.
double rounded(DataType dtype, double number) {
  std::array<uint8_t, 8> bytes{};
  encode(dtype, number, bytes.data());
  return decoded(dtype, bytes.data());
}

/// An array with `shift` odd bytes before it, and a guard after it.
class Elements {
 public:
  Elements(DataType dtype, int64_t count, size_t shift)
      : dtype_(dtype),
        bytes_(static_cast<size_t>(count) * size_of(dtype)),
        shift_(shift),
        memory_(bytes_ + shift + kGuard, 0x5a) {}

  uint8_t* data() { return memory_.data() + shift_; }
  int64_t count() const { return static_cast<int64_t>(bytes_ / size_of(dtype_)); }
  DataType dtype() const { return dtype_; }
  double get(int64_t i) { return decoded(dtype_, data() + i * size_of(dtype_)); }
  void set(int64_t i, double number) { encode(dtype_, number, data() + i * size_of(dtype_)); }
  /// Numbers around 0, of moderate size.
  void fill(std::mt19937_64& random) {
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < count(); i++) set(i, normal(random));
  }
  /// All bits are random: subnormal numbers, infinities and NaN with payloads are among them.
  void fill_with_bits(std::mt19937_64& random) {
    for (size_t i = 0; i < bytes_; i++) data()[i] = static_cast<uint8_t>(random());
  }
  std::vector<uint8_t> bytes() { return {data(), data() + bytes_}; }
  bool guards_intact() const {
    for (size_t i = 0; i < memory_.size(); i++)
      if ((i < shift_ || i >= shift_ + bytes_) && memory_[i] != 0x5a) return false;
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  DataType dtype_;
  size_t bytes_;
  size_t shift_;
  std::vector<uint8_t> memory_;
};

/// A row in memory of its own.
struct OwnRow {
  OwnRow(const Rule& rule, DataType dtype, int64_t count, size_t shift = 0)
      : value(dtype, count, shift),
        state{Elements(Rule::state_dtype(dtype), count, shift),
              Elements(Rule::state_dtype(dtype), count, 3 * shift)} {
    for (size_t i = 0; i < rule.state_slots(); i++) rule.begin_state(dtype, state[i].data(), count);
  }

  void push(const Rule& rule, Elements& pushed, double weight = 1) {
    const FloatEnvironment environment;
    rule.apply(value.dtype(),
               {value.data(), {state[0].data(), state[1].data()}, value.count(), &tally},
               {pushed.dtype(), pushed.data(), weight});
  }
  bool guards_intact() const {
    return value.guards_intact() && state[0].guards_intact() && state[1].guards_intact();
  }

  Elements value;
  std::array<Elements, kMostStateSlots> state;
  RowTally tally;
};

// ---- what the rules are, for one element. T is the type of the arithmetic.

template <typename T>
struct Expected {
  T value = 0, first = 0, second = 0;
  int64_t pushes = 0;
  double weight = 0;

  static T narrow(double number) { return static_cast<T>(number); }

  void apply(const rules::Sum&, T push, double) { value += push; }
  void apply(const rules::Assign&, T push, double) { value = push; }
  void apply(const rules::WeightedAverage&, T push, double added) {
    value = pushes == 1 ? push : value + (push - value) * narrow(added / weight);
  }
  void apply(const rules::Sgd& sgd, T push, double) {
    T step = sgd.maximize ? -push : push;
    if (sgd.weight_decay != 0) step += narrow(sgd.weight_decay) * value;
    if (sgd.momentum != 0) {
      if (pushes == 1)
        first = step;
      else
        first = first * narrow(sgd.momentum) + narrow(1 - sgd.dampening) * step;
      step = sgd.nesterov ? step + narrow(sgd.momentum) * first : first;
    }
    value += narrow(-sgd.lr) * step;
  }
  void apply(const rules::Adagrad& adagrad, T push, double) {
    if (adagrad.weight_decay != 0) push += narrow(adagrad.weight_decay) * value;
    first += push * push;
    const double lr = adagrad.lr / (1 + static_cast<double>(pushes - 1) * adagrad.lr_decay);
    value += narrow(-lr) * push / (std::sqrt(first) + narrow(adagrad.eps));
  }
  void apply(const rules::Adam& adam, T push, double) {
    if (adam.weight_decay != 0) push += narrow(adam.weight_decay) * value;
    step_of_adam(adam, push);
  }
  void apply(const rules::Custom&, T, double) {}
  void apply(const rules::AdamW& adam, T push, double) {
    value *= narrow(1 - adam.lr * adam.weight_decay);
    step_of_adam(adam, push);
  }

 private:
  template <typename Parameters>
  void step_of_adam(const Parameters& adam, T push) {
    const T near = narrow(1 - adam.betas[0]), far = T{1} - near;
    first = near < T{0.5} ? first + near * (push - first) : push - (push - first) * far;
    second = second * narrow(adam.betas[1]) + narrow(1 - adam.betas[1]) * push * push;
    const double correction1 = 1 - exact_power(adam.betas[0]);
    const double correction2 = 1 - exact_power(adam.betas[1]);
    const T root = std::sqrt(second) / narrow(std::sqrt(correction2)) + narrow(adam.eps);
    value += narrow(-(adam.lr / correction1)) * first / root;
  }
  double exact_power(double beta) const {
    return static_cast<double>(std::pow(static_cast<long double>(beta), pushes));
  }
};

const std::vector<Rule::Parameters>& examples() {
  using namespace rules;
  static const std::vector<Rule::Parameters> all = {
      Sum{},
      Assign{},
      Sgd{.lr = 0.1},
      Sgd{.lr = 0.1, .weight_decay = 0.01, .maximize = true},
      Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3},
      Sgd{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .maximize = true},
      Adagrad{.lr = 0.1, .eps = 1e-6},
      Adagrad{.lr = 0.1, .lr_decay = 0.3, .weight_decay = 0.1, .initial_accumulator_value = 0.5},
      Adam{.lr = 0.1, .eps = 1e-6},
      Adam{.lr = 0.1, .betas = {0.3, 0.5}, .weight_decay = 0.2},
      AdamW{.lr = 0.1, .eps = 1e-6},
      AdamW{.lr = 0.1, .betas = {0, 0}, .weight_decay = 0},
      WeightedAverage{},
  };
  return all;
}

bool is_adam(const Rule& rule) { return std::string(rule.name()).starts_with("adam"); }

/// A row of each element on its own, to compare with.
template <typename T>
class ExpectedRow {
 public:
  ExpectedRow(const Rule& rule, OwnRow& row) : elements_(row.value.count()) {
    for (size_t i = 0; i < elements_.size(); i++) {
      elements_[i].value = static_cast<T>(row.value.get(i));
      if (rule.state_slots() > 0) elements_[i].first = static_cast<T>(row.state[0].get(i));
      if (rule.state_slots() > 1) elements_[i].second = static_cast<T>(row.state[1].get(i));
    }
  }
  void push(const Rule& rule, DataType dtype, Elements& pushed, double weight) {
    for (size_t i = 0; i < elements_.size(); i++) {
      Expected<T>& element = elements_[i];
      element.pushes++;
      element.weight += weight;
      std::visit(
          [&](const auto& kind) { element.apply(kind, static_cast<T>(pushed.get(i)), weight); },
          rule.parameters());
      element.value = static_cast<T>(rounded(dtype, element.value));
    }
  }
  /// The powers of Adam's betas need not be those of the test to the last bit of a double.
  void expect_equal(const Rule& rule, OwnRow& row, const std::string& what) {
    const double tolerance = is_adam(rule) && row.value.dtype() == RC_FLOAT64 ? 1e-14 : 0;
    for (size_t i = 0; i < elements_.size(); i++) {
      const Expected<T>& element = elements_[i];
      ASSERT_NEAR(row.value.get(i), element.value, tolerance) << what << ", element " << i;
      const std::array<T, kMostStateSlots> state = {element.first, element.second};
      for (size_t slot = 0; slot < rule.state_slots(); slot++)
        ASSERT_EQ(row.state[slot].get(i), state[slot]) << what << ", state of element " << i;
    }
  }

 private:
  std::vector<Expected<T>> elements_;
};

template <typename T>
void expect_rule(const Rule& rule, DataType dtype, DataType pushed, int64_t count, size_t shift) {
  constexpr int kPushes = 4;
  std::mt19937_64 random(static_cast<uint64_t>(count) + shift);
  OwnRow row(rule, dtype, count, shift);
  row.value.fill(random);
  ExpectedRow<T> expected(rule, row);
  Elements push(pushed, count, 5 * shift);
  for (int i = 0; i < kPushes; i++) {
    push.fill(random);
    const double weight = rule.takes_weights() ? 1 + i * 0.3 : 1;
    row.push(rule, push, weight);
    expected.push(rule, dtype, push, weight);
  }
  expected.expect_equal(rule, row,
                        fmt::format("{} of {} by {}, {} elements, {} bytes from alignment",
                                    rule.json(), name_of(dtype), name_of(pushed), count, shift));
  EXPECT_EQ(row.tally.pushes, kPushes);
  EXPECT_TRUE(row.guards_intact() && push.guards_intact()) << rule.json() << " wrote beyond";
}

TEST_P(Rules, ComputeWhatTheyAre) {
  for (const auto& parameters : examples()) {
    const Rule rule(parameters);
    for (int64_t count : kCounts) {
      const auto shift = static_cast<size_t>(count % 2);
      expect_rule<float>(rule, RC_FLOAT32, RC_FLOAT32, count, shift);
      expect_rule<double>(rule, RC_FLOAT64, RC_FLOAT64, count, shift);
      for (DataType half : {RC_FLOAT16, RC_BFLOAT16})
        for (DataType pushed : {half, RC_FLOAT32})
          expect_rule<float>(rule, half, pushed, count, shift);
    }
  }
}

/// All bytes of a row after some pushes of random bits.
std::vector<uint8_t> outcome(const Rule& rule, DataType dtype, DataType pushed) {
  constexpr int64_t kCount = 4097;
  std::mt19937_64 random(5);
  OwnRow row(rule, dtype, kCount);
  row.value.fill(random);
  Elements push(pushed, kCount, 1);
  for (int i = 0; i < 4; i++) {
    if (i % 2 == 0)
      push.fill(random);
    else
      push.fill_with_bits(random);
    row.push(rule, push);
  }
  std::vector<uint8_t> bytes = row.value.bytes();
  for (size_t i = 0; i < rule.state_slots(); i++) {
    const std::vector<uint8_t> state = row.state[i].bytes();
    bytes.insert(bytes.end(), state.begin(), state.end());
  }
  return bytes;
}

TEST_P(Rules, GiveTheSameBitsOnEveryInstructionSet) {
  use(0);  // all of them
  const int64_t baseline = testing::all_targets().back();
  for (const auto& parameters : examples()) {
    const Rule rule(parameters);
    for (DataType dtype : kFloats)
      for (DataType pushed : {dtype, is_half(dtype) ? RC_FLOAT32 : dtype}) {
        use(baseline);
        const std::vector<uint8_t> expected = outcome(rule, dtype, pushed);
        use(GetParam());
        EXPECT_EQ(outcome(rule, dtype, pushed), expected)
            << rule.json() << " of " << name_of(dtype) << " by " << name_of(pushed);
      }
  }
}

TEST_P(Rules, PassNanOn) {
  constexpr int64_t kCount = 37;
  for (const auto& parameters : examples())
    for (DataType dtype : kFloats) {
      const Rule rule(parameters);
      OwnRow row(rule, dtype, kCount);
      for (int64_t i = 0; i < kCount; i++) row.value.set(i, 1);
      Elements push(is_half(dtype) ? RC_FLOAT32 : dtype, kCount, 0);
      for (int64_t i = 0; i < kCount; i++) push.set(i, 1);
      push.set(5, std::numeric_limits<double>::quiet_NaN());
      push.set(36, std::numeric_limits<double>::quiet_NaN());
      row.push(rule, push);
      for (int64_t i = 0; i < kCount; i++)
        EXPECT_EQ(std::isnan(row.value.get(i)), i == 5 || i == 36)
            << rule.json() << " of " << name_of(dtype) << ", element " << i;
      EXPECT_EQ(count_nan(dtype, row.value.data(), kCount), 2) << rule.json();
    }
}

TEST_P(Rules, CountNan) {
  std::mt19937_64 random(3);
  for (DataType dtype : kFloats)
    for (int64_t count : kCounts) {
      Elements elements(dtype, count, 1);
      elements.fill_with_bits(random);
      int64_t expected = 0;
      for (int64_t i = 0; i < count; i++) expected += std::isnan(elements.get(i));
      EXPECT_EQ(count_nan(dtype, elements.data(), count), expected) << name_of(dtype);
    }
  const std::vector<uint8_t> ones(64, 0xff);
  EXPECT_EQ(count_nan(RC_INT32, ones.data(), 16), 0);
  EXPECT_EQ(count_nan(RC_BOOL, ones.data(), 64), 0);
}

template <typename T>
void expect_integers(DataType dtype) {
  std::mt19937_64 random(dtype);
  for (int64_t count : kCounts) {
    std::vector<T> before(count), push(count), sum, assigned;
    for (T& number : before) number = static_cast<T>(random());
    for (T& number : push) number = static_cast<T>(random());
    sum = assigned = before;
    RowTally tally;
    Rule(rules::Sum{}).apply(dtype, {sum.data(), {}, count, &tally}, {dtype, push.data()});
    Rule(rules::Assign{}).apply(dtype, {assigned.data(), {}, count, &tally}, {dtype, push.data()});
    for (int64_t i = 0; i < count; i++)
      EXPECT_EQ(sum[i],
                static_cast<T>(static_cast<uint64_t>(before[i]) + static_cast<uint64_t>(push[i])))
          << name_of(dtype);
    EXPECT_EQ(assigned, push);
    EXPECT_EQ(tally.pushes, 2);
  }
}

TEST_P(Rules, SumAndAssignIntegers) {
  expect_integers<uint8_t>(RC_UINT8);
  expect_integers<int8_t>(RC_INT8);
  expect_integers<uint16_t>(RC_UINT16);
  expect_integers<int16_t>(RC_INT16);
  expect_integers<uint32_t>(RC_UINT32);
  expect_integers<int32_t>(RC_INT32);
  expect_integers<uint64_t>(RC_UINT64);
  expect_integers<int64_t>(RC_INT64);
}

TEST(Rule, SumOfBoolIsOr) {
  std::vector<uint8_t> value = {0, 0, 1, 1}, push = {0, 1, 0, 1};
  RowTally tally;
  Rule(rules::Sum{}).apply(RC_BOOL, {value.data(), {}, 4, &tally}, {RC_BOOL, push.data()});
  EXPECT_EQ(value, (std::vector<uint8_t>{0, 1, 1, 1}));
}

TEST(Rule, WeightedAverageIsTheMeanOfAllPushes) {
  const Rule rule(rules::WeightedAverage{});
  OwnRow row(rule, RC_FLOAT64, 1);
  row.value.set(0, 1e30);  // has no weight
  Elements push(RC_FLOAT64, 1, 0);
  double sum = 0, weights = 0;
  for (const double weight : {0.5, 4.0, 1e-3, 2.0}) {
    push.set(0, 3 + weight);
    row.push(rule, push, weight);
    sum += weight * (3 + weight);
    weights += weight;
    EXPECT_NEAR(row.value.get(0), sum / weights, 1e-9);
  }
  EXPECT_DOUBLE_EQ(row.tally.weight, weights);
}

TEST(Rule, AdamCorrectsLessAndLessFromPushToPush) {
  const Rule rule(rules::Adam{.lr = 0.5, .betas = {0.9999, 0.99999}, .eps = 0});
  for (const int64_t pushes : {1, 2, 3, 1000, 1'000'000, 1'000'000'000}) {
    OwnRow row(rule, RC_FLOAT64, 1);
    row.value.set(0, 0);
    row.state[0].set(0, 1);
    row.state[1].set(0, 1);
    row.tally.pushes = pushes - 1;
    Elements push(RC_FLOAT64, 1, 0);
    push.set(0, 1);
    row.push(rule, push);
    const long double first = 1 - std::pow(0.9999L, pushes),
                      second = 1 - std::pow(0.99999L, pushes);
    const auto step = static_cast<double>(0.5L / first * std::sqrt(second));
    EXPECT_NEAR(row.value.get(0), -step, step * 1e-11) << pushes;
  }
}

TEST(Rule, TheLearningRateMayChangeBetweenPushes) {
  OwnRow row(Rule(rules::Sgd{.lr = 1, .momentum = 0.5}), RC_FLOAT32, 1);
  row.value.set(0, 0);
  Elements push(RC_FLOAT32, 1, 0);
  push.set(0, 1);
  row.push(Rule(rules::Sgd{.lr = 1, .momentum = 0.5}), push);     // buffer 1
  row.push(Rule(rules::Sgd{.lr = 0.25, .momentum = 0.5}), push);  // buffer 1.5
  EXPECT_EQ(row.value.get(0), -1 - 0.25 * 1.5);
}

TEST(Rule, ARowBeginsWithTheInitialAccumulator) {
  const Rule rule(rules::Adagrad{.initial_accumulator_value = 0.25});
  ASSERT_EQ(rule.state_slots(), 1);
  for (DataType dtype : kFloats) {
    const OwnRow row(rule, dtype, 9, 1);
    Elements state = row.state[0];
    EXPECT_EQ(state.dtype(), dtype == RC_FLOAT64 ? RC_FLOAT64 : RC_FLOAT32);
    for (int64_t i = 0; i < 9; i++) EXPECT_EQ(state.get(i), 0.25);
    EXPECT_TRUE(row.guards_intact());
  }
}

TEST(Rule, NanWithPayloadBecomesPlain) {
  uint32_t value = 0x7f81'2345, push = 0xffc0'0001;  // a signalling one, and a negative quiet one
  RowTally tally;
  Rule(rules::Sum{}).apply(RC_FLOAT32, {&value, {}, 1, &tally}, {RC_FLOAT32, &push});
  EXPECT_EQ(value, 0x7fc0'0000);
}

TEST(Rule, RoundsToNearestWhateverTheThreadHasChosen) {
  const Rule rule(rules::Sum{});
  OwnRow row(rule, RC_FLOAT32, 1);
  Elements push(RC_FLOAT32, 1, 0);
  row.value.set(0, 1);
  push.set(0, 0x1p-40);
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  row.push(rule, push);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(row.value.get(0), 1);
}

#ifdef __SSE2__
TEST(Rule, KeepsSubnormalNumbersWhateverTheThreadHasChosen) {
  const Rule rule(rules::Sum{});
  OwnRow row(rule, RC_FLOAT32, 1);
  Elements push(RC_FLOAT32, 1, 0);
  row.value.set(0, 0x1p-149);
  push.set(0, 0x1p-149);
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | kFlushToZero | kDenormalsAreZero);
  row.push(rule, push);
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(row.value.get(0), 0x1p-148);
}
#endif

}  // namespace
}  // namespace ringcoll

#include "mesh/saying.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/knobs_testing.h"
#include "transport/knobs.h"

namespace ringcoll {
namespace {

using testing::environment_of;

// Everything that is shorter, or longer, is an error and nothing else.
template <typename Decode>
void expect_whole(const std::string& bytes, Decode&& decode) {
  for (size_t length = 0; length < bytes.size(); length++)
    EXPECT_THROW(decode(bytes.substr(0, length)), Error) << length;
  EXPECT_THROW(decode(bytes + "x"), Error);
}

TEST(Saying, IntroductionsComeBackAsTheyWere) {
  Introduction said{.release = own_release(),
                    .failure = "f",
                    .location = "l",
                    .offers = "o",
                    .group_bytes = 7,
                    .costs_file = "cf",
                    .costs = "c",
                    .agreed = "a",
                    .secret = "s"};
  std::string bytes = said.encode();
  EXPECT_NO_THROW(Introduction::check_release(bytes, 1, 0));
  Introduction read = Introduction::decode(bytes);
  EXPECT_EQ(read.release, said.release);
  EXPECT_EQ(read.group_bytes, 7u);
  for (auto field : {&Introduction::failure, &Introduction::location, &Introduction::offers,
                     &Introduction::costs_file, &Introduction::costs, &Introduction::agreed,
                     &Introduction::secret})
    EXPECT_EQ(read.*field, said.*field);
  expect_whole(bytes, Introduction::decode);
}

TEST(Saying, KnobsAreSaidInOneWayAndWhole) {
  auto said = [](const char* bytes) {
    return agreed_values(read_config(environment_of({{"RINGCOLL_ARENA_BYTES", bytes}})));
  };
  std::string first = said("1G");
  EXPECT_EQ(first, said("1048576K"));
  EXPECT_NO_THROW(check_agreed(first, first, 1, "h"));
  expect_whole(first, [&](const std::string& damaged) { check_agreed(first, damaged, 1, "h"); });
}

TEST(Saying, ASecretIsNotSaid) {
  auto said = [](const char* secret) {
    return agreed_values(read_config(environment_of({{"RINGCOLL_SECRET", secret}})));
  };
  EXPECT_EQ(said("hunter2").find("hunter2"), std::string::npos);
  EXPECT_EQ(said("hunter2"), said("another"));
  EXPECT_NE(said("hunter2"), said(""));
}

TEST(Saying, AFailureIsRaisedAsItWas) {
  EXPECT_EQ(without_failure(with_failure({}, "said"), 3), "said");
  try {
    without_failure(with_failure(Error(Code::kPeerLost, "why", 5), "said"), 3);
    FAIL() << "nothing was raised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kPeerLost);
    EXPECT_EQ(error.rank(), 5);
    EXPECT_STREQ(error.what(), "why");
  }
  EXPECT_THROW(without_failure("", 3), Error);
  EXPECT_THROW(without_failure("\x01", 3), Error);
  EXPECT_THROW(without_failure(std::string("\x01\x63\0\0\0\0\0\0\0\0\0\0\0", 13), 3), Error);
}

TEST(Saying, AddressesComeBackAsTheyWere) {
  Addresses said{.of_transport = {{"shm", "1"}, {"tcp", ""}}, .networks = "n"};
  std::string bytes = said.encode();
  Addresses read = Addresses::decode(bytes);
  EXPECT_EQ(read.of_transport, said.of_transport);
  EXPECT_EQ(read.networks, "n");
  expect_whole(bytes, Addresses::decode);
}

TEST(Saying, AnswersComeBackAsTheyWere) {
  Answer said{.reached = Reached::of(3, {0, 1, 1}, 0), .why = {{2, "because"}}};
  std::string bytes = said.encode();
  Answer read = Answer::decode(bytes, 3);
  EXPECT_EQ(read.reached.stretches, said.reached.stretches);
  EXPECT_EQ(read.why, said.why);
  expect_whole(bytes, [](const std::string& damaged) { return Answer::decode(damaged, 3); });
}

TEST(Saying, SamplesComeBackNearlyAsTheyWere) {
  std::vector<LevelSamples> said(2);
  said[1][1] = {.latency_us = 0.1, .rank_bytes_per_us = 12345.6, .lane_bytes_per_us = 1e300};
  std::string bytes = encode_samples(said);
  EXPECT_EQ(bytes.size(), 2 * kMeasuringRounds * 3 * sizeof(float));
  auto read = decode_samples(bytes, 2, 0);
  EXPECT_EQ(read[0][0].latency_us, 0);
  EXPECT_NEAR(read[1][1].latency_us, 0.1, 1e-8);
  EXPECT_NEAR(read[1][1].rank_bytes_per_us, 12345.6, 1e-2);
  EXPECT_EQ(read[1][1].lane_bytes_per_us, std::numeric_limits<float>::max());
  EXPECT_THROW(decode_samples(bytes, 1, 0), Error);
  EXPECT_THROW(decode_samples(bytes.substr(1), 2, 0), Error);
}

}  // namespace
}  // namespace ringcoll

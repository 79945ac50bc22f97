#include "connect/auth.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "connect/connector.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr size_t kHelloBytes = 88;

AuthPolicy policy(const std::string& secret = "sesame") {
  return {secret, 5, 0, 4, make_group_id("group")};
}

const Identity kTwoToFive{2, 5, 0, make_group_id("group")};

/// Who stands between the two sees all that was said, and may change the last of it.
using Said = std::vector<std::string>;
using Middle = std::function<void(Said&)>;
enum { kHello, kChallenge, kProof, kVerdict, kMessages };

// Lets prove() talk to a Challenger; what each concludes.
struct Outcome {
  Verdict active;
  Challenger::State passive;
  Verdict reason;
  Identity identity;
};
Outcome meet(
    const std::string& secret, const Identity& identity, const AuthPolicy& host = policy(),
    const Middle& middle = [](Said&) {}) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Fd active(fds[0]), passive(fds[1]);
  Challenger challenger(host);
  std::thread thread([&] {
    Deadline deadline(seconds(10));
    Said said;
    auto pass_on = [&](std::string message) {
      said.push_back(std::move(message));
      middle(said);
      return said.back();
    };
    try {
      while (size_t wanted = challenger.wanted()) {
        std::string message(wanted, 0);
        recv_all(passive.get(), message.data(), wanted, deadline, "test");
        std::string reply = pass_on(challenger.answer(pass_on(message)));
        send_all(passive.get(), reply.data(), reply.size(), deadline, "test");
      }
    } catch (const Error&) {
      // The active end has given up.
    }
    shutdown(passive.get(), SHUT_WR);
  });
  Verdict verdict = prove(active.get(), secret, identity, Deadline(seconds(10)), "test");
  shutdown(active.get(), SHUT_WR);
  thread.join();
  return {verdict, challenger.state(), challenger.verdict(), challenger.identity()};
}

TEST(Auth, WhoKnowsTheSecretIsLetIn) {
  for (Rank rank : {0, 2, 4}) {
    Outcome outcome = meet("sesame", {rank, 5, 7, make_group_id("group")});
    EXPECT_EQ(outcome.active, Verdict::kAccepted);
    EXPECT_EQ(outcome.passive, Challenger::State::kAccepted);
    EXPECT_EQ(outcome.identity.from, rank);
    EXPECT_EQ(outcome.identity.channel, 7u);
  }
}

TEST(Auth, WhoDoesNotIsToldWhy) {
  GroupId group = make_group_id("group");
  struct Case {
    std::string secret;
    Identity identity;
    Verdict expected;
  };
  for (const Case& c : {Case{"sesam", {2, 5, 0, group}, Verdict::kWrongSecret},
                        Case{"", {2, 5, 0, group}, Verdict::kWrongSecret},
                        Case{"sesame", {2, 5, 0, make_group_id("else")}, Verdict::kOtherGroup},
                        Case{"sesame", {2, 4, 0, group}, Verdict::kWrongRank},
                        Case{"sesame", {5, 5, 0, group}, Verdict::kWrongRank},
                        Case{"sesame", {-1, 5, 0, group}, Verdict::kWrongRank}}) {
    Outcome outcome = meet(c.secret, c.identity);
    EXPECT_EQ(outcome.active, c.expected) << explain(outcome.active);
    EXPECT_EQ(outcome.passive, Challenger::State::kRefused);
    EXPECT_EQ(outcome.reason, c.expected);
  }
}

TEST(Auth, AnEmptyOrLongSecretIsASecret) {
  GroupId group = make_group_id("group");
  for (const std::string& secret : {std::string(), std::string(1000, 's'), std::string("\0a", 2)})
    EXPECT_EQ(meet(secret, {2, 5, 0, group}, policy(secret)).active, Verdict::kAccepted);
}

// A passive end that plays something back, and then may hang up.
Verdict prove_against(const std::string& replies, double limit_s = 5, bool hangs_up = true) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Fd active(fds[0]), passive(fds[1]);
  send_all(passive.get(), replies.data(), replies.size(), Deadline(seconds(5)), "test");
  if (hangs_up) shutdown(passive.get(), SHUT_WR);
  return prove(active.get(), "sesame", kTwoToFive, Deadline(seconds(limit_s)), "the link");
}

TEST(Auth, TheActiveEndTrustsNobodyEither) {
  std::string challenge("RGCL\2\0\0\0", 8);
  challenge.append(32, 'n');
  EXPECT_EQ(prove_against(""), Verdict::kClosed);
  EXPECT_EQ(prove_against("HTTP/1.1 400 Bad Request\r\nServer: something\r\n\r\n"),
            Verdict::kStranger);
  EXPECT_EQ(prove_against(challenge), Verdict::kClosed);
  std::string accepted("RGCL\1\0\0\0", 8);
  accepted.append(32, 'm');  // says yes, but does not know the secret
  EXPECT_EQ(prove_against(challenge + accepted), Verdict::kStranger);
  challenge[4] = 1;
  EXPECT_EQ(prove_against(challenge), Verdict::kOtherVersion);
}

TEST(Auth, AnEndThatFallsSilentIsATimeoutThatNamesTheLink) {
  std::string challenge("RGCL\2\0\0\0", 8);
  challenge.append(32, 'n');
  for (const std::string& replies : {std::string(), challenge, challenge + "RGCL"}) {
    auto start = Clock::now();
    try {
      prove_against(replies, 0.05, false);
      ADD_FAILURE() << replies.size();
    } catch (const Error& error) {
      EXPECT_LT(to_seconds(Clock::now() - start), 10);
      EXPECT_EQ(error.code(), Code::kTimeout);
      EXPECT_NE(std::string(error.what()).find("the link"), std::string::npos) << error.what();
    }
  }
}

// All of each message is under the proofs, and of the proofs every byte counts.
TEST(Auth, AByteThatIsChangedOnTheWayEndsIt) {
  for (size_t message = kHello; message < kMessages; message++)
    for (size_t at = 0, length = 1; at < length; at++) {
      Outcome outcome = meet("sesame", kTwoToFive, policy(), [&](Said& said) {
        if (said.size() != message + 1) return;
        length = said[message].size();
        said[message][at] ^= 0x40;
      });
      SCOPED_TRACE(fmt::format("byte {} of message {}", at, message));
      EXPECT_NE(outcome.active, Verdict::kAccepted);
      if (message == kVerdict) continue;  // the passive end has nothing more to hear
      EXPECT_NE(outcome.passive, Challenger::State::kAccepted);
    }
}

TEST(Auth, WhatWasRecordedIsWorthNothing) {
  Said said;
  ASSERT_EQ(meet("sesame", kTwoToFive, policy(), [&](Said& now) { said = now; }).active,
            Verdict::kAccepted);
  AuthPolicy host = policy();
  Challenger challenger(host);
  EXPECT_NE(challenger.answer(said[kHello]), said[kChallenge]) << "challenges must be fresh";
  challenger.answer(said[kProof]);
  EXPECT_EQ(challenger.state(), Challenger::State::kRefused);
  EXPECT_EQ(challenger.verdict(), Verdict::kWrongSecret);
  EXPECT_EQ(challenger.wanted(), 0u);
  EXPECT_EQ(prove_against(said[kChallenge] + said[kVerdict]), Verdict::kStranger);
}

// Who does not know the secret says yes all the same, with the only proof that it has seen.
TEST(Auth, AProofThatComesBackAsInAMirrorIsNone) {
  Outcome outcome = meet("sesame", kTwoToFive, policy("simsim"), [](Said& said) {
    if (said.size() == kMessages) said[kVerdict] = std::string("RGCL\1\0\0\0", 8) + said[kProof];
  });
  EXPECT_EQ(outcome.active, Verdict::kStranger);
}

TEST(Auth, RubbishGetsNoAnswer) {
  AuthPolicy host = policy();
  Challenger challenger(host);
  EXPECT_EQ(challenger.answer(std::string(kHelloBytes, 'x')), "");
  EXPECT_EQ(challenger.state(), Challenger::State::kRefused);
  EXPECT_EQ(challenger.identity().from, kNobody);
}

TEST(Auth, SecretsAreRandom) {
  EXPECT_EQ(random_secret().size(), 64u);
  EXPECT_NE(random_secret(), random_secret());
  EXPECT_NE(make_group_id("a"), make_group_id("b"));
}

}  // namespace
}  // namespace ringcoll

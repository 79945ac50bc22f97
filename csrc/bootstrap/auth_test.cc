#include "bootstrap/auth.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>

#include "base/error.h"
#include "bootstrap/connector.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

constexpr size_t kHelloBytes = 88, kProofBytes = 32;

AuthPolicy policy(const std::string& secret = "sesame") {
  return {secret, 5, 0, 4, make_group_id("group")};
}

// Lets prove() talk to a Challenger; what each concludes.
struct Outcome {
  Verdict active;
  Challenger::State passive;
  Verdict reason;
  Identity identity;
};
Outcome meet(const std::string& secret, const Identity& identity,
             const AuthPolicy& host = policy()) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Fd active(fds[0]), passive(fds[1]);
  Challenger challenger(host);
  std::thread thread([&] {
    Deadline deadline(seconds(10));
    while (size_t wanted = challenger.wanted()) {
      std::string message(wanted, 0);
      recv_all(passive.get(), message.data(), wanted, deadline, "test");
      std::string reply = challenger.answer(message);
      send_all(passive.get(), reply.data(), reply.size(), deadline, "test");
    }
  });
  Verdict verdict = prove(active.get(), secret, identity, Deadline(seconds(10)), "test");
  thread.join();
  return {verdict, challenger.state(), challenger.verdict(), challenger.identity()};
}

TEST(Auth, WhoKnowsTheSecretIsLetIn) {
  Outcome outcome = meet("sesame", {2, 5, 7, make_group_id("group")});
  EXPECT_EQ(outcome.active, Verdict::kAccepted);
  EXPECT_EQ(outcome.passive, Challenger::State::kAccepted);
  EXPECT_EQ(outcome.identity.from, 2);
  EXPECT_EQ(outcome.identity.channel, 7u);
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

// A passive end that plays something back.
Verdict prove_against(const std::string& replies) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  Fd active(fds[0]), passive(fds[1]);
  send_all(passive.get(), replies.data(), replies.size(), Deadline(seconds(5)), "test");
  shutdown(passive.get(), SHUT_WR);
  return prove(active.get(), "sesame", {0, 1, 0, {}}, Deadline(seconds(5)), "test");
}

TEST(Auth, TheActiveEndTrustsNobodyEither) {
  std::string challenge("RGCL\1\0\0\0", 8);
  challenge.append(32, 'n');
  EXPECT_EQ(prove_against(""), Verdict::kClosed);
  EXPECT_EQ(prove_against("HTTP/1.1 400 Bad Request\r\nServer: something\r\n\r\n"),
            Verdict::kStranger);
  EXPECT_EQ(prove_against(challenge), Verdict::kClosed);
  std::string accepted("RGCL\1\0\0\0", 8);
  accepted.append(32, 'm');  // says yes, but does not know the secret
  EXPECT_EQ(prove_against(challenge + accepted), Verdict::kStranger);
  challenge[4] = 2;
  EXPECT_EQ(prove_against(challenge), Verdict::kOtherVersion);
}

TEST(Auth, ARecordedProofIsWorthNothing) {
  AuthPolicy host = policy();
  Challenger first(host), second(host);
  std::string hello("RGCL\1\0\0\0", 8);
  hello.resize(kHelloBytes, 'h');
  EXPECT_NE(first.answer(hello), second.answer(hello)) << "challenges must be fresh";
  std::string proof(kProofBytes, 'p');
  first.answer(proof);
  EXPECT_EQ(first.state(), Challenger::State::kRefused);
  EXPECT_EQ(first.wanted(), 0u);
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

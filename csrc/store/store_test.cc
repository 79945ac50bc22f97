#include "store/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/error_testing.h"
#include "connect/auth.h"
#include "net/socket.h"
#include "store/http_client.h"
#include "store/http_server_testing.h"
#include "store/store_testing.h"
#include "store/tcp_store_server.h"

namespace ringcoll {
namespace {

using testing::contains;
using testing::Directory;
using testing::error_of;
using testing::free_port;
using testing::soon;

/// A place for a store of each kind.
class EveryStore : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::string kind = GetParam();
    if (kind == "local") url_ = "local://test";
    if (kind == "file") url_ = directory_.url();
    if (kind == "tcp") url_ = fmt::format("tcp://127.0.0.1:{}", free_port());
    if (kind == "horovod") url_ = fmt::format("horovod://127.0.0.1:{}/scope", server_.port());
  }
  std::unique_ptr<Store> open(Rank rank) { return open_store(url_, "sesame", rank, 3, soon()); }

  Directory directory_;
  HttpServerForTests server_;
  std::string url_;
};
INSTANTIATE_TEST_SUITE_P(Stores, EveryStore, ::testing::Values("local", "file", "tcp", "horovod"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryStore, CarriesBytes) {
  auto zero = open(0), one = open(1);
  EXPECT_EQ(zero->name(), url_);
  std::string all_bytes;
  for (int i = 0; i < 256; i++) all_bytes += static_cast<char>(i);
  std::string large(300000, 'x');
  large += all_bytes;
  zero->set("a/b c%", all_bytes, soon());
  one->set("large", large, soon());
  one->set("empty", "", soon());
  EXPECT_EQ(one->get("a/b c%", soon()), all_bytes);
  EXPECT_EQ(zero->get("large", soon()), large);
  EXPECT_EQ(one->get("large", soon()), large);
  EXPECT_EQ(zero->get("empty", soon()), "");
  EXPECT_FALSE(one->try_get("a", soon()));
}

TEST_P(EveryStore, AGetWaitsForItsSet) {
  auto zero = open(0), one = open(1);
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    zero->set("key", "value", soon());
  });
  EXPECT_EQ(one->get("key", soon()), "value");
  thread.join();
}

TEST_P(EveryStore, AGetEndsAtTheDeadlineAndNamesStoreAndKey) {
  auto zero = open(0), one = open(1);
  for (Store* store : {zero.get(), one.get()}) {
    Error error = error_of([&] { store->get("nothing", Deadline(seconds(0.05))); });
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_TRUE(contains(error, url_) && contains(error, "nothing")) << error.what();
  }
}

TEST_P(EveryStore, AKeyIsSetOnce) {
  auto zero = open(0), one = open(1), two = open(2);
  one->set("key", "value", soon());
  two->set("key", "value", soon());
  for (Store* store : {zero.get(), one.get(), two.get()}) {
    Error error = error_of([&] { store->set("key", "another", soon()); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_TRUE(contains(error, "key")) << error.what();
  }
  EXPECT_EQ(zero->get("key", soon()), "value");
}

TEST_P(EveryStore, WhatIsRemovedIsGone) {
  auto zero = open(0), one = open(1);
  one->set("key", "value", soon());
  zero->remove("key", soon());
  zero->remove("key", soon());
  EXPECT_FALSE(one->try_get("key", soon()));
  one->set("key", "another", soon());
  EXPECT_EQ(zero->get("key", soon()), "another");
}

TEST(Store, NamesTheFormsThatThereAre) {
  for (const char* bad : {"", "tcp", "tcp://", "http://a:1", "file://", "/tmp", "local://"}) {
    Error error = error_of([&] { open_store(bad, "", 0, 1, soon()); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << bad;
    EXPECT_TRUE(contains(error, "tcp://host:port")) << error.what();
  }
  for (const char* bad : {"tcp://nohost", "tcp://127.0.0.1:0", "tcp://127.0.0.1:x",
                          "horovod://127.0.0.1", "horovod://127.0.0.1:0/x", "file://relative"})
    EXPECT_EQ(error_of([&] { open_store(bad, "", 1, 2, soon()); }).code(), Code::kInvalidArgument)
        << bad;
}

TEST(LocalStore, IsForgottenWithItsLastUser) {
  {
    auto store = open_store("local://same", "", 0, 1, soon());
    store->set("key", "value", soon());
    auto second = open_store("local://same", "", 0, 1, soon());
    store.reset();
    EXPECT_TRUE(second->try_get("key", soon()));
    EXPECT_FALSE(open_store("local://else", "", 0, 1, soon())->try_get("key", soon()));
  }
  EXPECT_FALSE(open_store("local://same", "", 0, 1, soon())->try_get("key", soon()));
}

// ---- tcp:// ----

TEST(TcpStore, AMissingRankZeroIsNamedWithCauseAndRemedy) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  Error error = error_of([&] { open_store(url, "", 1, 2, Deadline(seconds(0.2))); });
  EXPECT_EQ(error.code(), Code::kTransport);
  for (const std::string& part : {url, std::string("Connection refused"), std::string("Rank 0")})
    EXPECT_TRUE(contains(error, part)) << error.what();
}

TEST(TcpStore, OthersWaitForRankZero) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  std::thread thread([&] {
    auto one = open_store(url, "", 1, 2, soon());
    one->set("key", "value", soon());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto zero = open_store(url, "", 0, 2, soon());
  EXPECT_EQ(zero->get("key", soon()), "value");
  thread.join();
}

TEST(TcpStore, AWrongSecretIsSaidAtOnceAndRemembered) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "sesame", 0, 2, soon());
  EXPECT_EQ(zero->remark(), "");
  Error error = error_of([&] { open_store(url, "simsim", 1, 2, Deadline(seconds(60))); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(error, "RINGCOLL_SECRET") && contains(error, url)) << error.what();
  for (int i = 0; i < 5000 && zero->remark().empty(); i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_NE(zero->remark().find("rank 1"), std::string::npos) << zero->remark();
  EXPECT_TRUE(open_store(url, "sesame", 1, 2, soon()));
}

TEST(TcpStore, TwoThatClaimRankZero) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 2, soon());
  Error error = error_of([&] { open_store(url, "", 0, 2, soon()); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_TRUE(contains(error, "Address already in use") && contains(error, "claim rank 0"))
      << error.what();
}

// Who had only the address that is free would meet with the ranks of whoever has the other.
TEST(TcpStore, AllAddressesOfAHostHaveToBeFree) {
  Fd other = listen_on(Address::parse("127.0.0.1:0"));
  uint16_t port = local_address(other.get()).port();
  auto at = [&](const char* host) { return Address::parse(fmt::format("{}:{}", host, port)); };
  Error error =
      error_of([&] { serve_tcp_store("tcp://here", {at("127.0.0.2"), at("127.0.0.1")}, "", 2); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_TRUE(contains(error, "Address already in use") && contains(error, "tcp://here"))
      << error.what();
  // An address of another host does not matter, nor one that is named twice.
  auto zero = serve_tcp_store(
      "tcp://here", {at("192.0.2.77"), at("127.0.0.2"), at("127.0.0.3"), at("127.0.0.2")}, "", 2);
  zero->set("key", "value", soon());
  for (const char* host : {"127.0.0.2", "127.0.0.3"}) {
    auto one = open_store(fmt::format("tcp://{}:{}", host, port), "", 1, 2, soon());
    EXPECT_EQ(one->get("key", soon()), "value");
  }
}

// Without a secret of the job's own, anybody who reaches the port can write to it.
TEST(TcpStore, DoesNotKeepMoreThanAJobNeeds) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 2, soon());
  auto one = open_store(url, "", 1, 2, soon());
  const std::string large(TcpStoreServer::most_bytes(2) / 2 - 10'000, 'x');
  for (const char* key : {"a", "b"}) one->set(key, large, soon());
  Error error = error_of([&] { one->set("c", large, soon()); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_TRUE(contains(error, "no room") && contains(error, url)) << error.what();
  EXPECT_EQ(zero->get("a", soon()), large);
  one->remove("a", soon());
  one->set("c", large, soon());
  EXPECT_EQ(one->get("c", soon()), large);
  zero->set("d", std::string(kMaxValueBytes, 'x'), soon());  // it is rank 0's own memory
  error = error_of([&] { one->set("e", std::string(kMaxValueBytes, 'x'), soon()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
}

TEST(TcpStore, AnAddressOfAnotherHost) {
  Error error = error_of([] { open_store("tcp://192.0.2.77:4711", "", 0, 2, soon()); });
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_TRUE(contains(error, "Cannot assign requested address")) << error.what();
}

TEST(TcpStore, AnotherProgramOnThePort) {
  HttpServerForTests other;
  other.always_answer(std::string(200, 'x'));
  std::string url = fmt::format("tcp://127.0.0.1:{}", other.port());
  // It waits for a line that does not come: at the deadline at the latest.
  Error error = error_of([&] { open_store(url, "", 1, 2, Deadline(seconds(0.3))); });
  EXPECT_TRUE(contains(error, url)) << error.what();
}

// Who polls asks the less often the more wait: of so many, not even once in the time.
TEST(TcpStore, WhoWaitsIsToldWhenTheKeyIsSet) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 3, soon());
  auto one = open_store(url, "", 1, 3, soon()), two = open_store(url, "", 2, 3, soon());
  for (Store* store : {zero.get(), one.get(), two.get()}) store->set_waiters(1'000'000);
  auto wait = [&](Store* store, double* took) {
    auto start = Clock::now();  // here, for the thread may begin late
    return std::thread([=] {
      EXPECT_EQ(store->get("key", soon()), "value");
      *took = to_seconds(Clock::now() - start);
    });
  };
  double took[2] = {0, 0};
  for (Store* setter : {two.get(), zero.get()}) {
    Store* other = setter == zero.get() ? two.get() : zero.get();
    std::thread waiters[] = {wait(one.get(), &took[0]), wait(other, &took[1])};
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    setter->set("key", "value", soon());
    for (std::thread& waiter : waiters) waiter.join();
    for (double each : took) {
      EXPECT_GT(each, 0.03);
      EXPECT_LT(each, 5);
    }
    setter->remove("key", soon());
  }
}

TEST(TcpStore, AWaitThatIsGivenUpDisturbsNothing) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 3, soon());
  auto one = open_store(url, "", 1, 3, soon()), two = open_store(url, "", 2, 3, soon());
  EXPECT_FALSE(one->wait("key", Deadline(Duration::zero())));
  EXPECT_FALSE(one->wait("another", Deadline(seconds(0.02))));
  one->while_waiting([] { throw Error(Code::kAborted, "seen"); });
  EXPECT_EQ(error_of([&] { one->wait("key", soon()); }).code(), Code::kAborted);
  one->while_waiting({});
  one->set("another", "1", soon());
  EXPECT_EQ(one->get("another", soon()), "1");
  // Set in the middle of it: told though nobody waits any more, and not taken for what is asked.
  one->while_waiting([] { throw Error(Code::kAborted, "seen"); });
  EXPECT_EQ(error_of([&] { one->wait("key", soon()); }).code(), Code::kAborted);
  zero->set("key", "2", soon());
  EXPECT_EQ(one->get("another", soon()), "1");
  EXPECT_EQ(one->wait("key", Deadline(Duration::zero())), "2");
  // Who ends while it waits is told nothing.
  two->while_waiting([] { throw Error(Code::kAborted, "seen"); });
  EXPECT_EQ(error_of([&] { two->wait("third", soon()); }).code(), Code::kAborted);
  two.reset();
  one->while_waiting({});
  EXPECT_FALSE(one->wait("third", Deadline(seconds(0.05))));
  zero->set("third", "3", soon());
  EXPECT_EQ(one->get("third", soon()), "3");
}

/// What is sent to a store as it is, and how many bytes come back until it is silent, or `closed`.
struct Raw {
  size_t bytes = 0;
  bool closed = false;
};
Raw say_to_store(const std::string& url, const std::vector<std::pair<uint32_t, std::string>>& all) {
  int error = 0;
  Fd fd = try_connect(Address::parse(url.substr(6)), soon(), &error);
  EXPECT_EQ(prove(fd.get(), "", {1, 0, UINT32_MAX, make_group_id("ringcoll store")}, soon(), url),
            Verdict::kAccepted);
  std::string message;
  for (const auto& [operation, key] : all) {
    uint32_t head[] = {0x54534352, operation, static_cast<uint32_t>(key.size()), 0};
    message.append(reinterpret_cast<const char*>(head), sizeof head);
    message += key;
  }
  send_all(fd.get(), message.data(), message.size(), soon(), url);
  Raw raw;
  char buffer[1000];
  try {
    for (;;) {
      size_t got = recv_some(fd.get(), buffer, sizeof buffer, Deadline(seconds(1)), url);
      raw.bytes += got;
      raw.closed = got == 0;
      if (got == 0) return raw;
    }
  } catch (const Error& error) {
    raw.closed = error.code() != Code::kTimeout;
    return raw;
  }
}

TEST(TcpStore, OnlyAWaitIsFollowedByTheNextRequest) {
  constexpr uint32_t kGet = 2, kRemove = 3, kWait = 4;
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 2, soon());
  auto both = [&](uint32_t first, uint32_t second) {
    return say_to_store(url, {{first, "key"}, {second, "key"}});
  };
  auto is = [](const Raw& raw, size_t answers, bool closed) {
    return raw.bytes == 16 * answers && raw.closed == closed;
  };
  EXPECT_TRUE(is(say_to_store(url, {{kWait, "key"}}), 0, false));
  EXPECT_TRUE(is(both(kWait, kGet), 2, false));
  EXPECT_TRUE(is(both(kWait, kWait), 1, false));
  EXPECT_TRUE(is(both(kGet, kWait), 0, true));
  EXPECT_TRUE(is(both(kGet, kGet), 0, true));
  EXPECT_TRUE(is(say_to_store(url, {{kWait, "key"}, {kWait, "key"}, {kRemove, "key"}}), 3, false));
  EXPECT_TRUE(is(say_to_store(url, {{5, "key"}}), 0, true));
  zero->set("key", "", soon());
  EXPECT_TRUE(is(both(kWait, kGet), 2, false));
}

TEST(TcpStore, TheEndOfRankZeroIsNoticed) {
  std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  auto zero = open_store(url, "", 0, 2, soon());
  auto one = open_store(url, "", 1, 2, soon());
  zero.reset();
  auto start = Clock::now();
  Error error = error_of([&] { one->get("key", Deadline(seconds(60))); });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_EQ(error.code(), Code::kTransport);
  EXPECT_EQ(error.rank(), 0);
  EXPECT_TRUE(contains(error, "rank 0 has ended")) << error.what();
}

// ---- horovod:// ----

TEST(HttpStore, AServerThatIsNotThereIsNamedWithCauseAndRemedy) {
  std::string url = fmt::format("horovod://127.0.0.1:{}", free_port());
  auto start = Clock::now();
  Error error = error_of([&] { open_store(url, "", 1, 2, Deadline(seconds(60))); });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_EQ(error.code(), Code::kTransport);
  for (const std::string& part :
       {url, std::string("Connection refused"), std::string("horovodrun")})
    EXPECT_TRUE(contains(error, part)) << error.what();
}

TEST(HttpStore, ARequestThatIsNotAnsweredIsMadeAgain) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 1, soon());
  server.forget_requests(2);
  store->set("key", "value", soon());
  EXPECT_EQ(store->get("key", soon()), "value");
  server.forget_requests(1000);
  Error error = error_of([&] { store->try_get("key", Deadline(seconds(0.2))); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_TRUE(contains(error, url)) << error.what();
}

// Longer than a second, after which a server that is not there is given up.
TEST(HttpStore, AServerThatIsOverloadedIsAskedUntilTheDeadline) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 1, soon());
  const std::string busy = "HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
  // It is late first, and then resets.
  server.forget_requests(1);
  server.reset_requests(5);
  store->set("key", "value", soon());
  server.always_answer(busy);
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    server.always_answer("");
  });
  EXPECT_EQ(store->try_get("key", soon()), "value");
  thread.join();
  server.always_answer(busy);
  Error error = error_of([&] { store->try_get("key", Deadline(seconds(0.3))); });
  EXPECT_EQ(error.code(), Code::kTransport);
  for (const std::string& part : {url, std::string("status 503"), std::string("times in 0.")})
    EXPECT_TRUE(contains(error, part)) << error.what();
  server.always_answer("");
  server.reset_requests(1000);
  error = error_of([&] { store->try_get("key", Deadline(seconds(0.3))); });
  EXPECT_TRUE(contains(error, "reset by peer")) << error.what();
}

TEST(HttpStore, AServerThatWillNotChangeIsNotAskedAgain) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 1, soon());
  for (const char* status : {"400 Bad Request", "403 Forbidden", "301 Moved"}) {
    server.always_answer(fmt::format("HTTP/1.0 {}\r\nContent-Length: 0\r\n\r\n", status));
    uint64_t before = server.requests();
    Error error = error_of([&] { store->try_get("key", Deadline(seconds(60))); });
    EXPECT_EQ(server.requests(), before + 1);
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_TRUE(contains(error, std::string("status ") + std::string(status, 3)) &&
                contains(error, url))
        << error.what();
  }
  server.always_answer("SSH-2.0-OpenSSH\r\n\r\n");
  auto start = Clock::now();
  Error error = error_of([&] { store->try_get("key", Deadline(seconds(60))); });
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_TRUE(contains(error, "not HTTP")) << error.what();
}

// The kernel asks a server that had no room again after a second.
TEST(HttpStore, AConnectionThatIsDroppedIsMadeAgainSoon) {
  HttpServerForTests server;
  auto store = open_store(fmt::format("horovod://127.0.0.1:{}", server.port()), "", 0, 1, soon());
  auto seconds_after_none = [&] {
    server.stand_still(seconds(0.25));
    auto start = Clock::now();
    EXPECT_FALSE(store->try_get("key", soon()));
    return to_seconds(Clock::now() - start);
  };
  double fastest = 10;
  for (int i = 0; i < 5; i++) fastest = std::min(fastest, seconds_after_none());
  EXPECT_GT(fastest, 0.2);  // it did stand still
  EXPECT_LT(fastest, 0.9);
}

// Each pauses for a tenth of a second at most, by chance.
TEST(HttpStore, RanksThatWereDroppedTogetherDoNotComeBackTogether) {
  constexpr int kRanks = 12;
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  server.forget_requests(kRanks);
  auto start = Clock::now();
  std::vector<double> came_back(kRanks);
  std::vector<std::thread> ranks;
  for (double& when : came_back)
    ranks.emplace_back([&] {
      EXPECT_FALSE(open_store(url, "", 1, kRanks, soon())->try_get("key", soon()));
      when = to_seconds(Clock::now() - start);
    });
  for (auto& rank : ranks) rank.join();
  auto [first, last] = std::ranges::minmax(came_back);
  EXPECT_GT(last - first, 0.02);
}

// Many ranks wait at one server, which is written in Python.
TEST(HttpStore, RanksThatWaitAskTheLessOftenTheMoreTheyAre) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto asked = [&](Rank size) {
    auto store = open_store(url, "", 0, size, soon());
    store->set_waiters(size);
    uint64_t before = server.requests();
    // In turns, as an exchange waits.
    for (Deadline end(seconds(1)); !end.passed();)
      EXPECT_FALSE(store->wait("key", Deadline(std::min(end.left(), store->turn()))));
    return server.requests() - before;
  };
  EXPECT_LE(asked(2), 25u);
  EXPECT_LE(asked(1000), 8u);
}

TEST(HttpStore, AScopeSeparates) {
  HttpServerForTests server;
  auto at = [&](const char* scope) {
    return open_store(fmt::format("horovod://127.0.0.1:{}{}", server.port(), scope), "", 0, 1,
                      soon());
  };
  at("")->set("key", "default", soon());
  at("/one")->set("key", "1", soon());
  at("/t/wo")->set("key", "2", soon());
  EXPECT_EQ(at("/ringcoll")->get("key", soon()), "default");
  EXPECT_EQ(at("/one")->get("key", soon()), "1");
  EXPECT_EQ(at("/t/wo")->get("key", soon()), "2");
}

TEST(HttpStore, AnswersThatMakeNoSenseAreErrors) {
  HttpServerForTests server;
  std::string url = fmt::format("horovod://127.0.0.1:{}", server.port());
  auto store = open_store(url, "", 0, 1, soon());
  for (const std::string& answer :
       {std::string("rubbish"), std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n"),
        std::string("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        "HTTP/1.1 200 OK\r\nX: " + std::string(100000, 'x')}) {
    server.always_answer(answer);
    Error error = error_of([&] { store->try_get("key", Deadline(seconds(0.05))); });
    EXPECT_TRUE(error.code() == Code::kTransport || error.code() == Code::kTimeout);
    EXPECT_TRUE(contains(error, url)) << error.what();
  }
  server.always_answer("HTTP/1.1 200 OK\r\n\r\nuntil the end");
  EXPECT_EQ(store->try_get("key", soon()), "until the end");
}

TEST(HttpHead, ReadsStatusAndLength) {
  HttpHead head = parse_http_head("HTTP/1.0 404 Not Found\r\nServer: x\r\ncontent-LENGTH:  17 ");
  EXPECT_EQ(head.status, 404);
  EXPECT_EQ(head.content_length, 17);
  EXPECT_EQ(parse_http_head("HTTP/1.1 200").content_length, -1);
  for (const char* bad :
       {"", "HTTP/2 200 OK", "HTTP/1.1 2x0 OK", "HTTP/1.1 200 OK\r\nno colon",
        "HTTP/1.1 200 OK\r\nContent-Length: 1 2", "HTTP/1.1 200 OK\r\nContent-Length: "})
    EXPECT_THROW(parse_http_head(bad), Error) << bad;
}

}  // namespace
}  // namespace ringcoll

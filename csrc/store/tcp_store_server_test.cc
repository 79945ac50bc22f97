// The server of tcp://: what its clients can make it take, and what it copies for them.
#include "store/tcp_store_server.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/allocations_testing.h"
#include "base/error.h"
#include "connect/auth.h"
#include "net/socket.h"
#include "store/store.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kSet = 1, kGet = 2, kWait = 4;
constexpr uint32_t kDone = 1, kFull = 4;
constexpr size_t kMiB = size_t{1} << 20;

Deadline soon() { return Deadline(seconds(20)); }

std::string free_url() {
  Fd listener = listen_on(Address::parse("127.0.0.1:0"));
  return fmt::format("tcp://{}", local_address(listener.get()).text());
}

/// A client that says what it likes, in memory that it had before.
class Raw {
 public:
  explicit Raw(const std::string& url) : url_(url) {
    int error = 0;
    fd_ = try_connect(Address::parse(url.substr(6)), soon(), &error);
    EXPECT_EQ(
        prove(fd_.get(), "", {1, 0, UINT32_MAX, make_group_id("ringcoll store")}, soon(), url),
        Verdict::kAccepted);
  }
  void begin(uint32_t operation, const std::string& key, size_t value_bytes = 0) {
    std::array<uint32_t, 4> head = {0x54534352, operation, static_cast<uint32_t>(key.size()),
                                    static_cast<uint32_t>(value_bytes)};
    send_all(fd_.get(), head.data(), sizeof head, soon(), url_);
    send_all(fd_.get(), key.data(), key.size(), soon(), url_);
  }
  /// So much more of the value. False: the server has closed the connection.
  bool send(size_t bytes) {
    try {
      for (size_t here; bytes > 0; bytes -= here) {
        here = std::min(bytes, piece_.size());
        send_all(fd_.get(), piece_.data(), here, soon(), url_);
      }
      return true;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), Code::kTimeout) << error.what();
      return false;
    }
  }
  /// The status of the answer, and the bytes of its value; 0 if the connection was closed instead.
  std::pair<uint32_t, size_t> answer() {
    std::array<uint32_t, 4> head{};
    try {
      recv_all(fd_.get(), head.data(), sizeof head, soon(), url_);
      size_t left = head[2];
      for (size_t here; left > 0; left -= here) {
        here = std::min(left, piece_.size());
        recv_all(fd_.get(), piece_.data(), here, soon(), url_);
      }
    } catch (const Error& error) {
      EXPECT_NE(error.code(), Code::kTimeout) << error.what();
      return {0, 0};
    }
    return {head[1], head[2]};
  }

 private:
  const std::string url_;
  Fd fd_;
  std::vector<char> piece_ = std::vector<char>(1 << 16, 'x');
};

using Answer = std::pair<uint32_t, size_t>;
const Answer kClosed = {0, 0};

TEST(TcpStoreServer, ARequestForWhichThereIsNoMemoryEndsItsConnectionAlone) {
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 3, soon()), one = open_store(url, "", 1, 3, soon());
  for (int i = 0; i < 3; i++) {
    Raw raw(url);
    testing::LargeAllocations large(kMiB);
    large.refuse(true);
    raw.begin(kSet, "key", 8 * kMiB);
    raw.send(8 * kMiB);
    EXPECT_EQ(raw.answer(), kClosed);
    EXPECT_GT(large.made(), 0);
  }
  one->set("key", std::string(8 * kMiB, 'y'), soon());
  EXPECT_EQ(zero->get("key", soon()), std::string(8 * kMiB, 'y'));
}

// What has come of requests that are not whole is bounded in sum. Where it is too much, the one
// that has the most goes.
TEST(TcpStoreServer, RequestsThatAreNotWholeYetAreBoundedTogether) {
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 2, soon());
  const size_t most = TcpStoreServer::most_bytes(2);
  auto begun = [&](const std::string& key, size_t bytes) {
    auto raw = std::make_unique<Raw>(url);
    raw->begin(kSet, key, bytes + 1);
    EXPECT_TRUE(raw->send(bytes)) << key;
    return raw;
  };
  {
    auto raw = begun("all", most - 1);
    EXPECT_TRUE(raw->send(1));
    EXPECT_EQ(raw->answer(), Answer(kFull, 0)) << "nobody else has more";
    raw->begin(kSet, "little", 0);
    EXPECT_EQ(raw->answer(), Answer(kDone, 0));
  }
  auto small = begun("small", most / 8);
  auto large = begun("large", most / 2);
  auto too_much = begun("too much", most / 12 * 5);
  EXPECT_EQ(large->answer(), kClosed);
  EXPECT_TRUE(small->send(1));
  EXPECT_EQ(small->answer(), Answer(kDone, 0));
  EXPECT_TRUE(too_much->send(1));
  EXPECT_EQ(too_much->answer(), Answer(kDone, 0));
  EXPECT_EQ(zero->get("small", soon()).size(), most / 8 + 1);
  EXPECT_EQ(zero->get("too much", soon()).size(), most / 12 * 5 + 1);
}

// What those have set who are gone goes first, the oldest before the others.
TEST(TcpStoreServer, ValuesOfThoseWhoAreGoneMakeRoom) {
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 2, soon());
  const size_t part = TcpStoreServer::most_bytes(2) / 4;
  for (const char* key : {"a", "b", "c"}) {
    Raw raw(url);
    raw.begin(kSet, key, part);
    EXPECT_TRUE(raw.send(part));
    EXPECT_EQ(raw.answer(), Answer(kDone, 0));
  }
  auto one = open_store(url, "", 1, 2, soon());
  one->set("record", std::string(part, 'x'), soon());
  EXPECT_FALSE(zero->try_get("a", soon()));
  EXPECT_TRUE(zero->try_get("c", soon()));
  EXPECT_EQ(zero->get("record", soon()).size(), part);
}

size_t descriptors() {
  return static_cast<size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), {}));
}

/// What the i-th stranger does, until it is closed.
void flood(Raw& raw, size_t i) {
  constexpr size_t kPiece = 2 * kMiB;
  std::string key = fmt::format("stranger {}", i);
  try {
    if (i % 4 == 1) raw.begin(kWait, key);
    if (i % 4 == 2) raw.begin(kSet, key, kPiece), raw.send(kPiece / 2);
    if (i % 4 == 3) raw.begin(kSet, key, kPiece), raw.send(kPiece);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTransport) << error.what();
  }
}

// Strangers who speak the protocol, as anybody can where the job has no secret: some do nothing,
// some begin, some write all that they can and some wait. Ranks that were there before and that
// come now meet all the same.
TEST(TcpStoreServer, AFloodOfStrangersKeepsNoRankOutAndIsBounded) {
  constexpr size_t kStrangers = 400;
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 3, soon());
  auto one = open_store(url, "", 1, 3, soon());
  one->set("of rank 1", std::string(5000, '1'), soon());
  size_t before = descriptors(), most = 0;
  std::vector<std::unique_ptr<Raw>> strangers;
  std::jthread waiting([&] { EXPECT_EQ(one->get("of rank 0", Deadline(seconds(120))), "0"); });
  for (size_t i = 0; i < kStrangers; i++) {
    strangers.push_back(std::make_unique<Raw>(url));
    flood(*strangers.back(), i);
    most = std::max(most, descriptors() - before - strangers.size());
    if (i != kStrangers / 2) continue;
    auto two = open_store(url, "", 2, 3, soon());
    two->set("of rank 2", std::string(5000, '2'), soon());
    EXPECT_EQ(zero->get("of rank 2", soon()), std::string(5000, '2'));
    two->remove("of rank 2", soon());
  }
  EXPECT_LE(most, TcpStoreServer::most_clients(3) + 140) << "with those that a gate looks at";
  EXPECT_EQ(zero->get("of rank 1", soon()), std::string(5000, '1'));
  zero->set("of rank 0", "0", soon());
  waiting.join();
  EXPECT_EQ(one->get("of rank 1", soon()), std::string(5000, '1'));
  size_t kept = 0;
  for (size_t i = 0; i < kStrangers; i++)
    if (auto value = zero->try_get(fmt::format("stranger {}", i), soon())) kept += value->size();
  EXPECT_LE(kept, TcpStoreServer::most_bytes(3));
}

// The outcome of a round has something of each rank, and goes to each.
TEST(TcpStoreServer, AValueIsInMemoryOnceHoweverManyAreSentIt) {
  constexpr size_t kBytes = 4 * kMiB;
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 2, soon());
  std::vector<std::unique_ptr<Raw>> clients;
  for (int i = 0; i < 8; i++) clients.push_back(std::make_unique<Raw>(url));
  const std::string value(kBytes, 'v');
  testing::LargeAllocations large(kBytes);
  for (auto& client : clients) client->begin(kWait, "key");
  zero->set("key", value, soon());
  // None has read anything yet: what does not fit into the sockets is with the server.
  for (auto& client : clients) EXPECT_EQ(client->answer(), Answer(kDone, kBytes));
  for (auto& client : clients) client->begin(kGet, "key");
  for (auto& client : clients) EXPECT_EQ(client->answer(), Answer(kDone, kBytes));
  EXPECT_EQ(large.made(), 1);
}

}  // namespace
}  // namespace ringcoll

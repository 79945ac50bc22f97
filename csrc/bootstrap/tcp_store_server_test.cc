// The server of tcp://: what its clients can make it take, and what it copies for them.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/allocations_testing.h"
#include "base/error.h"
#include "bootstrap/auth.h"
#include "bootstrap/store.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

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

// What has come of requests that are not whole is bounded in sum, and only as long as it is kept.
TEST(TcpStoreServer, RequestsThatAreNotWholeYetAreBoundedTogether) {
  constexpr size_t kValue = 62 * kMiB, kPart = 60 * kMiB;
  std::string url = free_url();
  auto zero = open_store(url, "", 0, 2, soon());
  auto begun = [&](const std::string& key) {
    auto raw = std::make_unique<Raw>(url);
    raw->begin(kSet, key, kValue);
    EXPECT_TRUE(raw->send(kPart)) << key;
    return raw;
  };
  auto a = begun("a"), b = begun("b");
  auto too_much = std::make_unique<Raw>(url);
  too_much->begin(kSet, "c", kValue);
  too_much->send(20 * kMiB);
  EXPECT_EQ(too_much->answer(), kClosed);
  // It has cost nobody else anything, and one that is whole or gone counts no more.
  EXPECT_TRUE(a->send(kValue - kPart));
  EXPECT_EQ(a->answer(), Answer(kDone, 0));
  b.reset();
  auto d = begun("d"), e = begun("e");
  EXPECT_TRUE(d->send(kValue - kPart));
  EXPECT_EQ(d->answer(), Answer(kDone, 0));
  EXPECT_TRUE(e->send(kValue - kPart));
  EXPECT_EQ(e->answer(), Answer(kFull, 0)) << "of a and d it has as much as it keeps";
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

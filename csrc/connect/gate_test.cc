#include "connect/gate.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "net/socket.h"

namespace ringcoll {
namespace {

template <typename Condition>
bool soon(Condition&& condition) {
  Deadline deadline(seconds(20));
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A gate of rank 1 that lets rank 0 in, and who came.
struct House {
  explicit House(Gate::Limits limits = {}) : gate(Address::parse("127.0.0.1:0"), loop, limits) {}
  void open() {
    gate.open(
        {"sesame", 1, 0, 0, {}},
        [this](const Identity&, Fd fd) {
          std::lock_guard lock(mutex);
          guests.push_back(std::move(fd));
        },
        [this](const Gate::Refusal&) { refused++; });
  }
  size_t guest_count() {
    std::lock_guard lock(mutex);
    return guests.size();
  }
  Fd connect() {
    int error = 0;
    Fd fd = try_connect(gate.address(), Deadline(seconds(10)), &error);
    EXPECT_EQ(error, 0);
    return fd;
  }
  Verdict visit(const std::string& secret, Fd* kept = nullptr) {
    Fd fd = connect();
    Verdict verdict = prove(fd.get(), secret, {0, 1, 0, {}}, Deadline(seconds(20)), "test");
    if (kept) *kept = std::move(fd);
    return verdict;
  }

  EventLoop loop{"test"};
  std::mutex mutex;
  std::vector<Fd> guests;
  std::atomic<int> refused{0};
  Gate gate;
};

bool is_closed_by_peer(int fd) {
  char bytes[64];
  try {
    while (recv_some(fd, bytes, sizeof bytes, Deadline(seconds(20)), "test") > 0) {
    }
    return true;
  } catch (const Error& error) {
    return error.code() == Code::kTransport;  // reset
  }
}

TEST(Gate, LetsInWhoKnowsTheSecret) {
  House house;
  house.open();
  Fd visitor;
  EXPECT_EQ(house.visit("sesame", &visitor), Verdict::kAccepted);
  ASSERT_TRUE(soon([&] { return house.guest_count() == 1; }));
  // What follows the proof is the new owner's.
  send_all(visitor.get(), "hello", 5, Deadline(seconds(5)), "test");
  char text[5];
  recv_all(house.guests[0].get(), text, 5, Deadline(seconds(5)), "test");
  EXPECT_EQ(std::string(text, 5), "hello");
  EXPECT_EQ(house.gate.rejected(), 0u);
}

TEST(Gate, WhoComesBeforeItOpensWaits) {
  House house;
  std::thread visitor([&] { EXPECT_EQ(house.visit("sesame"), Verdict::kAccepted); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(house.guest_count(), 0u);
  house.open();
  visitor.join();
}

TEST(Gate, AWrongSecretIsRefusedAndReported) {
  House house;
  house.open();
  EXPECT_EQ(house.visit("simsim"), Verdict::kWrongSecret);
  EXPECT_TRUE(soon([&] { return house.refused == 1; }));
  EXPECT_EQ(house.gate.rejected(), 1u);
  EXPECT_EQ(house.guest_count(), 0u);
}

TEST(Gate, RandomBytesChangeNothingButTheCounter) {
  House house;
  house.open();
  std::mt19937 random(7);
  for (int i = 0; i < 60; i++) {
    std::string bytes(random() % 300, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 3 == 0) bytes.replace(0, std::min<size_t>(4, bytes.size()), "RGCL");
    Fd fd = house.connect();
    try {
      send_all(fd.get(), bytes.data(), bytes.size(), Deadline(seconds(5)), "test");
    } catch (const Error&) {
      // Closed already.
    }
    shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(is_closed_by_peer(fd.get()));
  }
  EXPECT_TRUE(soon([&] { return house.gate.rejected() == 60; }));
  EXPECT_EQ(house.guest_count(), 0u);
  EXPECT_EQ(house.visit("sesame"), Verdict::kAccepted);
}

TEST(Gate, ASlowOneIsClosedAtItsDeadline) {
  House house({128, seconds(0.1)});
  house.open();
  Fd silent = house.connect();
  Fd slow = house.connect();
  send_all(slow.get(), "RGCL", 4, Deadline(seconds(5)), "test");
  EXPECT_EQ(house.visit("sesame"), Verdict::kAccepted) << "they hold nobody up";
  EXPECT_TRUE(is_closed_by_peer(silent.get()));
  EXPECT_TRUE(is_closed_by_peer(slow.get()));
  EXPECT_EQ(house.gate.rejected(), 2u);
}

// A start of a thousand ranks comes to one gate at once.
TEST(Gate, APlaceThatBecomesFreeIsTakenAtOnce) {
  House house({.connections = 1});
  std::vector<std::thread> visitors;
  for (int i = 0; i < 24; i++)
    visitors.emplace_back([&] { EXPECT_EQ(house.visit("sesame"), Verdict::kAccepted); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto start = Clock::now();
  house.open();
  for (std::thread& visitor : visitors) visitor.join();
  // Six seconds if each waited for the tick at which the gate looks after deadlines.
  EXPECT_LT(to_seconds(Clock::now() - start), 3);
}

TEST(Gate, ManyIdleOnesDoNotKeepOthersOut) {
  House house({4, seconds(3600)});
  house.open();
  std::vector<Fd> idle;
  for (int i = 0; i < 20; i++) idle.push_back(house.connect());
  EXPECT_EQ(house.visit("sesame"), Verdict::kAccepted);
  EXPECT_GE(house.gate.rejected(), 15u);
}

TEST(Gate, ClosesWithConnectionsInEveryState) {
  for (int i = 0; i < 20; i++) {
    House house;
    house.open();
    Fd silent = house.connect();
    Fd half = house.connect();
    send_all(half.get(), "RGCL", 4, Deadline(seconds(5)), "test");
    Fd rubbish = house.connect();
    std::string bytes(200, 'x');
    send_all(rubbish.get(), bytes.data(), bytes.size(), Deadline(seconds(5)), "test");
  }
}

}  // namespace
}  // namespace ringcoll

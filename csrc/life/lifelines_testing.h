// Ranks with lifelines in one process, for tests, and what travels on a line, word by word.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "life/lifelines.h"
#include "net/socket.h"

namespace ringcoll::testing {

/// No Fds yet: those are not a child's.
inline std::array<int, 2> make_raw_pair() {
  std::array<int, 2> fds{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()), 0);
  return fds;
}
inline std::array<Fd, 2> make_pair() {
  auto fds = make_raw_pair();
  return {Fd(fds[0]), Fd(fds[1])};
}

template <typename Condition>
bool soon(Condition&& condition) {
  Deadline deadline(seconds(20));
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::string describe(Rank rank) { return fmt::format("rank {} (pid 7 on here)", rank); }

inline std::vector<Rank> all_ranks(Rank size) {
  std::vector<Rank> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// One rank: its loop, its lifelines, the health of all ranks, and how often on_poison was called.
struct Node {
  Node(Rank rank, Rank size)
      : lines(std::make_unique<Lifelines>(rank, size, loop, describe)),
        health(of_group(0, all_ranks(size), poisons)) {}
  void end() { health.reset(), lines.reset(); }
  std::unique_ptr<Health> of_group(GroupNumber number, std::vector<Rank> members,
                                   std::atomic<int>& count) {
    auto made = std::make_shared<Health*>(nullptr);
    auto group = std::make_unique<Health>(
        *lines, Health::Options{.group = number,
                                .members = std::move(members),
                                .on_poison =
                                    [this, made, &count] {
                                      // Neither a lock of the lifelines nor of the loop may be
                                      // held.
                                      if (*made) {
                                        EXPECT_STRNE((*made)->error().what(), "");
                                      }
                                      loop.after(Duration::zero(), [] {});
                                      count++;
                                    },
                                .describe = describe});
    *made = group.get();
    return group;
  }

  EventLoop loop{"test"};
  std::atomic<int> poisons{0};
  std::unique_ptr<Lifelines> lines;
  std::unique_ptr<Health> health;
};

inline void join(Node& a, Rank rank_a, Node& b, Rank rank_b) {
  auto ends = make_pair();
  a.lines->add(rank_b, std::move(ends[0]));
  b.lines->add(rank_a, std::move(ends[1]));
}

inline std::vector<std::unique_ptr<Node>> mesh(Rank size) {
  std::vector<std::unique_ptr<Node>> nodes;
  for (Rank rank = 0; rank < size; rank++) nodes.push_back(std::make_unique<Node>(rank, size));
  for (Rank a = 0; a < size; a++)
    for (Rank b = a + 1; b < size; b++) join(*nodes[a], a, *nodes[b], b);
  return nodes;
}

inline bool contains(const Error& error, const char* part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

inline constexpr uint32_t kMagicWord = 0x4e494c52;
inline constexpr uint32_t kVersionWord = 4;
// version, type, text bytes
constexpr uint32_t second_word(uint32_t version, uint32_t type, uint32_t text) {
  return version | type << 8 | text << 16;
}

inline std::string bytes_of(std::initializer_list<uint32_t> words) {
  std::string bytes;
  for (uint32_t word : words) bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  return bytes;
}

}  // namespace ringcoll::testing

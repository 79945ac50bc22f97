// Channels for messages between processes: one that is killed, a fork, and what a message takes.
#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/group/messages_testing.h"
#include "mesh/ranks_testing.h"
#include "store/store.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;
using namespace testing;

constexpr double kTimeoutSeconds = 60;

/// A process for each rank, all of which are ended.
class MessageProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  /// What a rank does, and then says in a line.
  using Body = std::function<std::string(Mesh&)>;

  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override {
    for (pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    pids_.clear();
    fs::remove_all(folder_);
  }
  /// What each has said; "" if nothing for a quarter of the time-out.
  std::vector<std::string> run(Rank size, const Body& body) {
    std::vector<int> pipes;
    for (Rank rank = 0; rank < size; rank++) pipes.push_back(start(rank, size, body));
    std::vector<std::string> said;
    for (Rank rank = 0; rank < size; rank++) said.push_back(line(pipes[rank], rank == mute_));
    return said;
  }

  bool is_there(const std::string& name) const { return fs::exists(folder_ / name); }
  void await(const std::string& name) const {
    for (Deadline deadline(seconds(20)); !is_there(name);) {
      check(!deadline.passed(), Code::kTimeout, "no file {}", name);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// Is there as a whole, or not.
  void tell(const std::string& name, std::span<const std::byte> content = {}) const {
    const fs::path part = folder_ / (name + ".part");
    std::ofstream(part).write(reinterpret_cast<const char*>(content.data()),
                              static_cast<std::streamsize>(content.size()));
    fs::rename(part, folder_ / name);
  }
  static std::vector<Rank> all_of(const Mesh& mesh) {
    std::vector<Rank> ranks(static_cast<size_t>(mesh.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  /// A group of all ranks, which meet by files.
  std::unique_ptr<Group> make_group(Mesh& mesh) const {
    auto group = std::make_unique<Group>(std::shared_ptr<Mesh>(&mesh, [](Mesh*) {}), all_of(mesh));
    std::vector<Group::Offer> offers(static_cast<size_t>(mesh.size()));
    auto name = [](Rank rank) { return fmt::format("offer-{}", rank); };
    tell(name(mesh.rank()), std::as_bytes(std::span(&group->offer(), 1)));
    for (Rank rank = 0; rank < mesh.size(); rank++) {
      await(name(rank));
      std::ifstream(folder_ / name(rank))
          .read(reinterpret_cast<char*>(&offers[static_cast<size_t>(rank)]), sizeof offers[0]);
    }
    group->join(offers);
    return group;
  }

  const fs::path folder_ =
      fs::temp_directory_path() / fmt::format("ringcoll-messages-{}", ::getpid());
  Rank mute_ = kNobody;  // says nothing, and its child may have its pipe

 private:
  int start(Rank rank, Rank size, const Body& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::string said = be(rank, size, body);
      ::_exit(::write(ends[1], said.data(), said.size()) > 0 ? 0 : 1);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    return ends[0];
  }
  std::string be(Rank rank, Rank size, const Body& body) {
    try {
      Deadline deadline(seconds(kTimeoutSeconds));
      auto store = open_store("file://" + folder_.string(), "", rank, size, deadline);
      auto exchange = make_store_exchange(std::move(store), "w", rank, size);
      Mesh mesh(config_of(GetParam()), *exchange);
      return body(mesh);
    } catch (const Error& error) {
      return fmt::format("{} {}", name_of(error.code()), error.rank());
    }
  }
  static std::string line(int fd, bool mute) {
    pollfd watched{fd, POLLIN, 0};
    std::string text(1000, '\0');
    ssize_t got = !mute && ::poll(&watched, 1, static_cast<int>(kTimeoutSeconds * 1000 / 4)) == 1
                      ? ::read(fd, text.data(), text.size())
                      : 0;
    ::close(fd);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

  std::vector<pid_t> pids_;
};
INSTANTIATE_TEST_SUITE_P(, MessageProcesses, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

/// Sends to all, and takes from all, until the group fails.
[[noreturn]] void talk_for_ever(Mesh& mesh) {
  Post post(mesh.whole());
  for (;;) {
    try {
      for (Rank peer = 0; peer < mesh.size(); peer++)
        if (peer != mesh.rank()) post.send(peer, 100);
      for (int i = 0; i < 10; i++) post.look();
      post.channels().wait(seconds(10), 0);
    } catch (const Error&) {  // of a link; the cause behind it is on its way
      for (Deadline deadline(seconds(20)); !deadline.passed();) {
        mesh.whole().health().throw_if_poisoned();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      throw;
    }
  }
}

// Whatever it was doing: before, or while, its channels were made, or later.
TEST_P(MessageProcesses, OneThatIsKilledIsNamedByAllOthers) {
  for (int looks : {0, 1, 3, 200}) {
    SCOPED_TRACE(looks);
    auto said = run(3, [looks](Mesh& mesh) -> std::string {
      if (mesh.rank() != 1) talk_for_ever(mesh);
      Post post(mesh.whole());
      for (Rank peer : {0, 2}) post.send(peer, 100);
      for (int i = 0; i < looks; i++) post.look();
      ::kill(::getpid(), SIGKILL);
      return "";
    });
    EXPECT_EQ(said[0], "PeerLost 1");
    EXPECT_EQ(said[1], "");
    EXPECT_EQ(said[2], "PeerLost 1");
    TearDown();
    SetUp();
  }
}

// What it has not taken is kept for it no longer: there is room for all groups.
TEST_P(MessageProcesses, NoMemoryIsKeptForOneThatIsKilled) {
  auto said = run(2, [this](Mesh& mesh) -> std::string {
    auto group = make_group(mesh);
    Post post(*group);
    post.send(1 - mesh.rank(), 5000);
    post.receive(1);
    post.complete();
    if (mesh.rank() == 1) {
      await("sent");
      ::kill(::getpid(), SIGKILL);
    }
    post.send(1, 6000);
    post.hand_over();
    tell("sent");
    for (Deadline deadline(seconds(10)); !group->health().poisoned() && !deadline.passed();)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    group.reset();
    // Its lifeline is closed before the process has ended, which alone counts.
    for (Deadline deadline(seconds(10)); !deadline.passed(); mesh.forget_lost())
      if (testing::takes_all(mesh.message_extents())) return "room";
    return "no room";
  });
  EXPECT_EQ(said[0], "room");
}

// A child of a rank has none of its descriptors, and may live longer than it.
TEST_P(MessageProcesses, AChildOfARankKeepsNothingOpen) {
  mute_ = 1;
  auto said = run(2, [this](Mesh& mesh) -> std::string {
    Post post(mesh.whole());
    post.send(1 - mesh.rank(), 100);
    post.receive(1);
    post.complete();
    if (mesh.rank() == 0) talk_for_ever(mesh);
    pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      while (fs::exists(folder_)) ::usleep(10'000);  // until the test is over
      ::_exit(0);
    }
    ::kill(::getpid(), SIGKILL);
    return "";
  });
  EXPECT_EQ(said[0], "PeerLost 1");
}

/// Median time of a message of 8 bytes, there and back, halved.
double half_round_trip_ns(Rank rank, const std::function<void(bool send)>& step) {
  constexpr int kTurns = 20'000;
  std::vector<double> times;
  for (int turn = 0; turn < kTurns; turn++) {
    auto began = Clock::now();
    for (bool send : {rank == 0, rank != 0}) step(send);
    times.push_back(to_seconds(Clock::now() - began) * 1e9 / 2);
  }
  std::ranges::nth_element(times, times.begin() + kTurns / 2);
  return times[kTurns / 2];
}

// Printed, and not judged: machines differ, and this one may be busy.
TEST_P(MessageProcesses, TakeAboutAsLongAsThoseOfCalls) {
  auto said = run(2, [](Mesh& mesh) -> std::string {
    Rank peer = 1 - mesh.rank();
    uint64_t word = 7;
    View view;
    Channels& calls = mesh.whole().channels();
    calls.connect({&peer, 1});
    double of_calls = half_round_trip_ns(mesh.rank(), [&](bool send) {
      auto done = [&] {
        return send ? calls[peer].try_send({}, &word, sizeof word) > 0
                    : calls[peer].try_recv(&word, sizeof word, &view);
      };
      calls.wait(peer, done, [] { return "a test"; });
      if (!send) calls[peer].release();
    });
    MessageChannels& messages = mesh.whole().messages();
    while (!messages.try_open(peer))
      if (!messages.progress()) messages.wait(seconds(1), 0);
    double of_messages = half_round_trip_ns(mesh.rank(), [&](bool send) {
      Envelope envelope;
      uint64_t bytes = 0;
      auto done = [&] {
        messages.progress();
        if (send) return messages[peer].try_send({}, &word, sizeof word) > 0;
        return messages[peer].try_peek(&envelope, &bytes) &&
               messages[peer].try_recv(&word, bytes, &view);
      };
      while (!done()) messages.wait(seconds(10), 0);
      if (!send) messages[peer].release();
    });
    return fmt::format("8 bytes: {:.0f} ns in calls, {:.0f} ns as messages", of_calls, of_messages);
  });
  std::printf("%s: %s\n", GetParam().c_str(), said[0].c_str());
  EXPECT_NE(said[0].find("as messages"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("as messages"), std::string::npos) << said[1];
}

}  // namespace
}  // namespace ringcoll

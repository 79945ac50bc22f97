// A rank that is killed at a system call of its start, whichever: all others learn at once who it
// was. Stepped through by ptrace(2), so that nothing of the library is there for the test alone.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/store.h"
#include "mesh/group.h"
#include "mesh/ranks_testing.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

constexpr Rank kSize = 3;
constexpr double kTimeoutSeconds = 60;
// Long before that deadline, on a machine that is busy.
constexpr Duration kAtOnce = std::chrono::seconds(20);
// Starts for each rank that is killed, spread over its system calls.
constexpr int kStarts = 8;
const std::string kMet = "met";

/// Does something when the first round is made: from then on ranks know where the others are.
class MetExchange final : public Exchange {
 public:
  MetExchange(std::unique_ptr<Exchange> inner, std::function<void()> met)
      : inner_(std::move(inner)), met_(std::move(met)) {
    inner_->while_waiting([this] { look(); });
  }
  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override {
    auto blobs = inner_->all_gather(mine, deadline);
    if (met_) std::exchange(met_, {})();
    return blobs;
  }

 private:
  std::unique_ptr<Exchange> inner_;
  std::function<void()> met_;
};

/// A process for each rank of a job. What each says is read from a pipe.
class Job {
 public:
  Job(const std::string& transport, Rank traced) : transport_(transport), traced_(traced) {
    fs::create_directories(folder_);
    for (Rank rank = 0; rank < kSize; rank++) start(rank);
  }
  ~Job() {
    for (pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (int pipe : pipes_) ::close(pipe);
    fs::remove_all(folder_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Lets the traced rank come so many times to the begin or the end of a system call after all
  /// have made the first round, then kills it. How far it came, which is less if its start was over
  /// before.
  int kill_after(int calls) {
    pid_t pid = pids_[traced_];
    await_stop(pid, SIGSTOP);
    for (Rank rank = 0; rank < kSize; rank++)
      EXPECT_EQ(rank == traced_ ? kMet : said(rank), kMet) << rank;
    int came = 0;
    for (; came < calls; came++) {
      EXPECT_EQ(::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr), 0);
      if (stopped_by(pid) == SIGSTOP) break;  // its start is over
    }
    ::kill(pid, SIGKILL);
    return came;
  }
  /// "" if it said nothing in time.
  std::string said(Rank rank) {
    pollfd watched{pipes_[rank], POLLIN, 0};
    auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kAtOnce);
    if (::poll(&watched, 1, static_cast<int>(limit.count())) != 1) return "";
    std::string text(1000, '\0');
    ssize_t got = ::read(pipes_[rank], text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

 private:
  void start(Rank rank) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (rank == traced_) ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      say(ends[1], be(rank, ends[1]));
      ::_exit(0);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    pipes_.push_back(ends[0]);
  }
  static void say(int pipe, const std::string& text) {
    if (::write(pipe, text.data(), text.size()) < 0) ::_exit(1);
  }
  std::string be(Rank rank, int pipe) const {
    auto met = [&] { rank == traced_ ? (void)::raise(SIGSTOP) : say(pipe, kMet); };
    try {
      Deadline deadline(seconds(kTimeoutSeconds));
      auto store = open_store("file://" + folder_.string(), "", rank, kSize, deadline);
      MetExchange exchange(make_store_exchange(std::move(store), "w", rank, kSize), met);
      Mesh mesh(testing::config_of(transport_), exchange);
      if (rank == traced_) ::raise(SIGSTOP);
      while (!deadline.passed()) {
        mesh.whole().health().throw_if_poisoned();  // one that connected in time
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return "connected";
    } catch (const Error& error) {
      return fmt::format("{} {}: {}", name_of(error.code()), error.rank(), error.what());
    }
  }
  static int stopped_by(pid_t pid) {
    int status = 0;
    if (::waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return 0;
    return WSTOPSIG(status);
  }
  static void await_stop(pid_t pid, int signal) {
    for (int stop = stopped_by(pid); stop != signal; stop = stopped_by(pid)) {
      ASSERT_NE(stop, 0) << "the traced rank has ended by itself";
      ASSERT_EQ(::ptrace(PTRACE_CONT, pid, nullptr, stop), 0);
    }
  }

  const std::string transport_;
  const Rank traced_;
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ringcoll-death-{}", ::getpid());
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

struct Case {
  std::string transport;
  Rank dies;
};
class DeathAtAnyStep : public ::testing::TestWithParam<Case> {};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.transport << ", rank " << c.dies;
}

std::vector<Case> cases() {
  std::vector<const char*> transports = {"shm", "tcp"};
  if (testing::rdma_of_the_host())
    transports.push_back("verbs");  // that in software is a process's
  std::vector<Case> all;
  for (const char* transport : transports)
    for (Rank rank = 0; rank < kSize; rank++) all.push_back({transport, rank});
  return all;
}
INSTANTIATE_TEST_SUITE_P(, DeathAtAnyStep, ::testing::ValuesIn(cases()), [](const auto& info) {
  return fmt::format("{}_rank{}", info.param.transport, info.param.dies);
});

TEST_P(DeathAtAnyStep, IsNoticedByAllOthers) {
  const auto& [transport, dies] = GetParam();
  int calls = Job(transport, dies).kill_after(INT_MAX);
  ASSERT_GT(calls, kStarts) << "system calls of a start";
  for (int i = 0; i < kStarts; i++) {
    int after = calls * i / kStarts;
    Job job(transport, dies);
    job.kill_after(after);
    for (Rank rank = 0; rank < kSize; rank++) {
      if (rank == dies) continue;
      std::string said = job.said(rank);
      EXPECT_TRUE(said.starts_with(fmt::format("PeerLost {}: ", dies)))
          << "rank " << rank << ", killed after " << after << " of about " << calls << ": " << said;
    }
  }
}

}  // namespace
}  // namespace ringcoll

// A rank that is killed at a system call of its start, or of making its channels later, whichever:
// all others learn at once who it was. Stepped through by ptrace(2), so that nothing of the library
// is there for the test alone.
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
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"
#include "store/store.h"
#include "transport/verbs/device_testing.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

// Of four each has one that it has no lifeline to before it talks to it.
constexpr Rank kSize = 4;
constexpr double kTimeoutSeconds = 60;
// From the kill to the last who learns of it. On a busy machine somebody may be late by chance, or
// blame one who has heard earlier and ended; but not each time: such a step is tried again.
constexpr Duration kInTime = std::chrono::seconds(1);
constexpr int kTries = 3;
// Who has said nothing by then has not noticed.
constexpr Duration kAtLast = std::chrono::seconds(20);
// Starts for each rank that is killed, spread over its system calls. Where in its share of them is
// drawn anew in each run of this program, so that some runs have been to all.
constexpr int kStarts = 3;
constexpr int kStartsOfExhaustive = 100;
// A thread that holds a lock of fork(2) may be the one that is stopped: then it does not fork.
constexpr int kForksInMs = 100;
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
  void finish() override { inner_->finish(); }
  void has_died(Rank rank) override { inner_->has_died(rank); }

 private:
  std::unique_ptr<Exchange> inner_;
  std::function<void()> met_;
};

/// What the rank is at that dies.
enum class At { kStart, kFirstUse };

struct Case {
  std::string transport;
  At at;
  Rank dies;
  int starts;
};

/// A process for each rank of a job. What each says is read from a pipe.
class Job {
 public:
  explicit Job(const Case& of) : transport_(of.transport), at_(of.at), traced_(of.dies) {
    for (int* pipe : {forks_, forked_, lives_}) EXPECT_EQ(::pipe(pipe), 0);
    fs::create_directories(folder_);
    for (Rank rank = 0; rank < kSize; rank++) start(rank);
  }
  ~Job() {
    for (pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    for (int pipe : pipes_) ::close(pipe);
    for (int* pipe : {forks_, forked_, lives_})
      for (int end : {0, 1}) ::close(pipe[end]);  // by which the child ends
    fs::remove_all(folder_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Lets the traced rank come so many times to the begin or the end of a system call after all
  /// have come to where it is interesting, then kills it. How far it came, which is less if it was
  /// through before. `forks`: it has a child by then, which lives on.
  int kill_after(int calls, bool forks = false) {
    pid_t pid = pids_[traced_];
    await_stop(pid, SIGSTOP);
    for (Rank rank = 0; rank < kSize; rank++)
      EXPECT_EQ(rank == traced_ ? kMet : said(rank), kMet) << rank;
    int came = 0;
    for (; came < calls; came++) {
      EXPECT_EQ(::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr), 0);
      if (stopped_by(pid) == SIGSTOP) break;  // it is through
    }
    if (forks && ::write(forks_[1], "f", 1) == 1) {
      pollfd answer{forked_[0], POLLIN, 0};
      ::poll(&answer, 1, kForksInMs);
    }
    killed_ = Clock::now();
    ::kill(pid, SIGKILL);
    return came;
  }
  Duration since_the_kill() const { return Clock::now() - killed_; }
  /// "" if it said nothing at all.
  std::string said(Rank rank) {
    pollfd watched{pipes_[rank], POLLIN, 0};
    if (::poll(&watched, 1, Deadline(kAtLast).left_ms()) != 1) return "";
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
      ::close(lives_[1]);
      if (rank == traced_) {
        std::thread([this] { fork_when_asked(); }).detach();
        ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      }
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
  // The child lives as long as the job.
  void fork_when_asked() const {
    char byte;
    if (::read(forks_[0], &byte, 1) != 1) return;
    if (::fork() == 0) ::_exit(static_cast<int>(::read(lives_[0], &byte, 1)));
    say(forked_[1], "f");
  }
  std::string be(Rank rank, int pipe) const {
    auto met = [&] { rank == traced_ ? (void)::raise(SIGSTOP) : say(pipe, kMet); };
    try {
      Deadline deadline(seconds(kTimeoutSeconds));
      auto store = open_store("file://" + folder_.string(), "", rank, kSize, deadline);
      MetExchange exchange(make_store_exchange(std::move(store), "w", rank, kSize),
                           at_ == At::kStart ? met : std::function<void()>());
      Mesh mesh(testing::config_of(transport_), exchange);
      if (at_ == At::kFirstUse) {
        met();
        connect_to_all(mesh.whole());
      }
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
  // As the first alltoall does.
  static void connect_to_all(Group& group) {
    std::vector<Rank> all(static_cast<size_t>(group.size()));
    std::ranges::copy(group.members(), all.begin());
    try {
      group.channels().connect(all);
    } catch (const Error& error) {
      throw group.fail(error);
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
  const At at_;
  const Rank traced_;
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ringcoll-death-{}", ::getpid());
  Clock::time_point killed_;
  int forks_[2], forked_[2], lives_[2];
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
};

class DeathAtAnyStep : public ::testing::TestWithParam<Case> {
 protected:
  /// "" if all others know of it in time, else who does not.
  static std::string trouble_after(int calls, bool with_child) {
    const Case& of = GetParam();
    Job job(of);
    job.kill_after(calls, with_child);
    std::string trouble;
    for (Rank rank = kSize - 1; rank >= 0; rank--) {
      if (rank == of.dies) continue;
      std::string said = job.said(rank);
      Duration took = job.since_the_kill();
      EXPECT_TRUE(said.starts_with("PeerLost ")) << "rank " << rank << ": " << said;
      if (took > kInTime || !said.starts_with(fmt::format("PeerLost {}: ", of.dies)))
        trouble += fmt::format("rank {} after {} s: {}\n", rank, to_seconds(took), said);
    }
    return trouble;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.transport << (c.at == At::kStart ? ", at its start" : ", connecting") << ", rank "
             << c.dies;
}

std::vector<Case> cases(int starts) {
  std::vector<const char*> transports = {"shm", "tcp"};
  if (testing::rdma_of_the_host())
    transports.push_back("verbs");  // that in software is a process's
  std::vector<Case> all;
  for (const char* transport : transports)
    for (At at : {At::kStart, At::kFirstUse})
      for (Rank rank = 0; rank < kSize; rank++) all.push_back({transport, at, rank, starts});
  return all;
}
std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_rank{}", c.transport, c.at == At::kStart ? "start" : "first_use",
                     c.dies);
}
INSTANTIATE_TEST_SUITE_P(, DeathAtAnyStep, ::testing::ValuesIn(cases(kStarts)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Exhaustive, DeathAtAnyStep,
                         ::testing::ValuesIn(cases(kStartsOfExhaustive)), name_of_case);

TEST_P(DeathAtAnyStep, IsNoticedByAllOthersInTime) {
  int starts = GetParam().starts;
  int calls = Job(GetParam()).kill_after(INT_MAX);
  ASSERT_GT(calls, kStarts) << "system calls";
  std::random_device random;
  for (int i = 0; i < starts; i++) {
    int first = calls * i / starts, share = std::max(calls * (i + 1) / starts - first, 1);
    int after = first + static_cast<int>(random() % static_cast<unsigned>(share));
    SCOPED_TRACE(fmt::format("killed after {} of about {}", after, calls));
    std::string trouble = "untried";
    for (int turn = 0; turn < kTries && !trouble.empty(); turn++) {
      if (turn > 0) std::cout << "tried again, killed after " << after << ": " << trouble;
      trouble = trouble_after(after, i % 2 == 1);
    }
    EXPECT_EQ(trouble, "");
  }
}

}  // namespace
}  // namespace ringcoll

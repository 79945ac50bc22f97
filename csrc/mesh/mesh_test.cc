// Ranks as processes that end while they set up.
#include "mesh/mesh.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "mesh/group/group.h"
#include "mesh/ranks_testing.h"
#include "store/store.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;

constexpr double kTimeoutSeconds = 60;
constexpr int kEnded = 7;

using testing::config_of;

void end_process() { ::_exit(kEnded); }

/// Does something when the rank has made so many rounds; never at 0.
class EndingExchange final : public Exchange {
 public:
  EndingExchange(std::unique_ptr<Exchange> inner, int rounds, std::function<void()> end)
      : inner_(std::move(inner)), rounds_(rounds), end_(std::move(end)) {
    inner_->while_waiting([this] { look(); });
  }
  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::vector<std::string> all_gather(const std::string& mine, Deadline deadline) override {
    auto blobs = inner_->all_gather(mine, deadline);
    if (++made_ == rounds_) end_();
    return blobs;
  }

 private:
  std::unique_ptr<Exchange> inner_;
  const int rounds_;
  const std::function<void()> end_;
  int made_ = 0;
};

/// MPI_Allgather among processes that begin after it: waits without a deadline.
class ProcessGather {
 public:
  explicit ProcessGather(Rank size) : size_(size) {
    void* memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, Code::kInternal, "mmap");
    shared_ = new (memory) Shared;
  }
  ~ProcessGather() { ::munmap(shared_, sizeof(Shared)); }
  ProcessGather(const ProcessGather&) = delete;
  ProcessGather& operator=(const ProcessGather&) = delete;

  bool gather(Rank rank, const void* mine, size_t bytes, void* all) {
    check(bytes * size_ <= sizeof shared_->bytes, Code::kInternal, "{} bytes", bytes);
    std::memcpy(shared_->bytes + bytes * rank, mine, bytes);
    wait();
    std::memcpy(all, shared_->bytes, bytes * size_);
    wait();
    return true;
  }

 private:
  struct Shared {
    std::atomic<int> arrived{0};
    char bytes[1 << 20];
  };
  void wait() {
    for (int all = ++waits_ * size_, now = ++shared_->arrived; now < all; now = shared_->arrived)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  const Rank size_;
  Shared* shared_;
  int waits_ = 0;
};

struct Case {
  std::string transport;
  Rank dies;
  int after_rounds;
  bool measuring = false;  // a moment later, while links are measured
};

// What a rank does in the middle of measuring its links.
void soon(void (*act)()) {
  std::thread([act] {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    act();
  }).detach();
}

class DeathInSetup : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr Rank kSize = 3;

  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override {
    for (pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    fs::remove_all(folder_);
  }
  /// Begins a rank; where its line of text can be read.
  int start(Rank rank) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      std::string said = be(rank);
      ::_exit(::write(ends[1], said.data(), said.size()) > 0 ? 0 : 1);
    }
    ::close(ends[1]);
    pids_.push_back(pid);
    return ends[0];
  }
  virtual std::string be(Rank rank) {
    int rounds = rank == GetParam().dies ? GetParam().after_rounds : 0;
    try {
      Deadline deadline(seconds(kTimeoutSeconds));
      auto store = open_store("file://" + folder_.string(), "", rank, kSize, deadline);
      EndingExchange exchange(make_store_exchange(std::move(store), "w", rank, kSize), rounds,
                              GetParam().measuring ? [] { soon(end_process); } : end_process);
      Mesh mesh(config_of(GetParam().transport), exchange);
      while (!deadline.passed()) {
        mesh.whole().health().throw_if_poisoned();  // one that connected in time
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return "connected";
    } catch (const Error& error) {
      return fmt::format("{} {}", name_of(error.code()), error.rank());
    }
  }
  static std::string line(int fd) {
    pollfd watched{fd, POLLIN, 0};
    std::string text(1000, '\0');
    ssize_t got = ::poll(&watched, 1, static_cast<int>(kTimeoutSeconds * 1000 / 4)) == 1
                      ? ::read(fd, text.data(), text.size())
                      : 0;
    ::close(fd);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ringcoll-setup-{}", ::getpid());
  std::vector<pid_t> pids_;
};

// From the second round on all ranks have lifelines. RDMA only on a device of the host, which
// processes can share.
std::vector<Case> cases() {
  const char* where = std::getenv("RINGCOLL_TEST_RDMA");
  std::vector<std::string> transports = {"shm", "tcp"};
  if (where && std::string(where) == "host") transports.emplace_back("verbs");
  std::vector<Case> all;
  for (const std::string& transport : transports)
    for (Rank rank : {0, 1, 2})
      for (int rounds = 2; rounds <= Mesh::kExchanges; rounds++)
        all.push_back({transport, rank, rounds});
  for (const std::string& transport : transports)
    all.push_back({transport, 1, Mesh::kExchanges - 1, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, DeathInSetup, ::testing::ValuesIn(cases()), [](const auto& info) {
  const Case& c = info.param;
  return fmt::format("{}_rank{}_round{}{}", c.transport, c.dies, c.after_rounds,
                     c.measuring ? "_measuring" : "");
});

// Long before the deadline.
TEST_P(DeathInSetup, IsNoticedByAllOthers) {
  std::vector<int> pipes;
  for (Rank rank = 0; rank < kSize; rank++) pipes.push_back(start(rank));
  for (Rank rank = 0; rank < kSize; rank++) {
    std::string said = line(pipes[rank]);
    if (rank == GetParam().dies)
      EXPECT_EQ(said, "");
    else
      EXPECT_EQ(said, fmt::format("PeerLost {}", GetParam().dies)) << "rank " << rank;
  }
}

class StopInSetup : public DeathInSetup {
 protected:
  std::string be(Rank rank) override {
    Deadline deadline(seconds(kTimeoutSeconds));
    auto store = open_store("file://" + folder_.string(), "", rank, kSize, deadline);
    EndingExchange exchange(make_store_exchange(std::move(store), "w", rank, kSize),
                            rank == 1 ? Mesh::kExchanges - 1 : 0,
                            [] { soon([] { ::kill(::getpid(), SIGSTOP); }); });
    Mesh mesh(config_of(GetParam().transport), exchange);
    return costs_json(mesh.costs().levels);
  }
};

// A host each, so that each pair of ranks measures by itself.
class ApartInSetup : public DeathInSetup {
 protected:
  static Config alone(Rank rank, double timeout_s) {
    Config config = config_of("tcp");
    config.hostid = fmt::format("h{}", rank);
    config.timeout_s = timeout_s;
    return config;
  }
  static std::string outcome(const std::function<void()>& make) {
    try {
      make();
      return "connected";
    } catch (const Error& error) {
      return fmt::format("{} {} {}", name_of(error.code()), error.rank(), error.what());
    }
  }
  std::vector<std::string> outcomes(Rank size, Rank but = kNobody) {
    std::vector<int> pipes;
    std::vector<std::string> said;
    for (Rank rank = 0; rank < size; rank++) pipes.push_back(start(rank));
    for (Rank rank = 0; rank < size; rank++)
      if (rank != but) said.push_back(line(pipes[rank]));
    return said;
  }
};

// Ranks that do not wait for the one that fails have measured by then, and are in the last round.
class FailureInSetup : public ApartInSetup {
 protected:
  static constexpr Rank kRanks = 6;
  std::string be(Rank rank) override {
    GatherFunction function = [&](const void* mine, size_t bytes, void* all) {
      return gather_.gather(rank, mine, bytes, all);
    };
    EndingExchange exchange(make_function_exchange(function, rank, kRanks),
                            rank == 0 ? Mesh::kExchanges - 1 : 0, no_more_descriptors);
    return outcome([&] { Mesh(alone(rank, kTimeoutSeconds), exchange); });
  }
  static void no_more_descriptors() {
    int next = ::dup(0);
    ::close(next);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ProcessGather gather_{kRanks};
};
INSTANTIATE_TEST_SUITE_P(, FailureInSetup, ::testing::Values(Case{"tcp", 0, 0}),
                         [](const auto& info) { return info.param.transport; });

TEST_P(FailureInSetup, EndsTheRoundOfAllOthers) {
  auto said = outcomes(kRanks);
  for (const std::string& text : said) EXPECT_EQ(text, said[0]);
  EXPECT_TRUE(said[0].starts_with("Transport ")) << said[0];
  EXPECT_NE(said[0].find("Too many open files"), std::string::npos) << said[0];
}

// One is stopped for good while links are measured: those who wait for it know better who it is
// than those who wait in the round that follows.
class BlameInSetup : public ApartInSetup {
 protected:
  static constexpr Rank kRanks = 6;
  static constexpr Rank kStopped = 3;
  std::string be(Rank rank) override {
    Deadline deadline(seconds(kTimeoutSeconds));
    auto store = open_store("file://" + folder_.string(), "", rank, kRanks, deadline);
    EndingExchange exchange(make_store_exchange(std::move(store), "w", rank, kRanks),
                            rank == kStopped ? Mesh::kExchanges - 1 : 0,
                            [] { soon([] { ::kill(::getpid(), SIGSTOP); }); });
    return outcome([&] { Mesh(alone(rank, 3), exchange); });
  }
};
INSTANTIATE_TEST_SUITE_P(, BlameInSetup, ::testing::Values(Case{"tcp", 3, 0}),
                         [](const auto& info) { return info.param.transport; });

TEST_P(BlameInSetup, FallsOnTheOneThatIsStopped) {
  std::vector<std::string> said;
  auto all_connected = [&] { return std::ranges::count(said, "connected") == kRanks - 1; };
  for (int tries = 0; tries == 0 || (tries < 5 && all_connected()); tries++) {  // stopped too late
    TearDown();
    pids_.clear();
    SetUp();
    said = outcomes(kRanks, kStopped);
  }
  for (const std::string& text : said) EXPECT_TRUE(text.starts_with("Timeout 3 ")) << text;
}

INSTANTIATE_TEST_SUITE_P(, StopInSetup, ::testing::Values(Case{"shm", 1, 0}, Case{"tcp", 1, 0}),
                         [](const auto& info) { return info.param.transport; });

// A rank is stopped for a while in the middle of measuring: the job starts, with costs that all
// agree about and that are no worse than what the others measured, or assumed.
TEST_P(StopInSetup, DoesNotDecideWhatLinksCost) {
  std::vector<int> pipes;
  for (Rank rank = 0; rank < kSize; rank++) pipes.push_back(start(rank));
  int status = 0;
  ASSERT_EQ(::waitpid(pids_[1], &status, WUNTRACED), pids_[1]);
  if (WIFSTOPPED(status)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(pids_[1], SIGCONT);
  } else {
    pids_.erase(pids_.begin() + 1);  // ended before it was stopped
  }
  std::vector<std::string> said;
  for (int pipe : pipes) said.push_back(line(pipe));
  for (const std::string& costs : said) EXPECT_EQ(costs, said[0]);
  auto levels = parse_costs(said[0], "rank 0");
  ASSERT_EQ(levels.size(), 1u);
  EXPECT_LT(levels[0].latency_us, 3e5 / 2) << "half the time that it was stopped";
}

}  // namespace
}  // namespace ringcoll

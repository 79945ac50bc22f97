#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "base/error_testing.h"
#include "store/store.h"
#include "store/store_testing.h"

namespace ringcoll {
namespace {

namespace fs = std::filesystem;
using testing::contains;
using testing::Directory;
using testing::error_of;
using testing::soon;

TEST(FileStore, ADirectoryThatIsNotThere) {
  for (Rank rank : {0, 1}) {
    Error error = error_of([&] { open_store("file:///nonesuch/dir", "", rank, 2, soon()); });
    EXPECT_EQ(error.code(), Code::kTransport);
    EXPECT_TRUE(contains(error, "No such file or directory")) << error.what();
  }
}

TEST(FileStore, LeavesNothingAndLeavesOthersFilesAlone) {
  Directory directory;
  std::string mine = directory.path() + "/notes.txt";
  std::ofstream(mine) << "mine";
  {
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    auto one = open_store(directory.url(), "", 1, 2, soon());
    one->set("key", "value", soon());
    one.reset();
    EXPECT_EQ(zero->get("key", soon()), "value");
  }
  EXPECT_TRUE(std::filesystem::remove(mine));
  EXPECT_TRUE(directory.empty());
}

TEST(FileStore, TwoThatClaimRankZeroAreNamed) {
  Directory directory;
  auto zero = open_store(directory.url(), "", 0, 2, soon());
  Error error = error_of([&] { open_store(directory.url(), "", 0, 2, soon()); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(contains(error, fmt::format("pid {} on ", getpid()))) << error.what();
  zero->set("key", "value", soon());
  EXPECT_EQ(zero->get("key", soon()), "value");
}

TEST(FileStore, AValueThatIsSetWhileRankZeroLeavesIsNoError) {
  Directory directory;
  auto one = open_store(directory.url(), "", 1, 2, soon());
  std::atomic<bool> ended = false;
  std::thread leaves([&] {
    while (!ended) open_store(directory.url(), "", 0, 2, soon());
  });
  std::optional<Error> error;
  try {
    for (int i = 0; i < 3000; i++) one->set(fmt::format("{}", i), "value", soon());
  } catch (const Error& raised) {
    error = raised;
  }
  ended = true;
  leaves.join();
  EXPECT_FALSE(error) << error->what();
}

TEST(FileStore, NothingIsLeftOfAValueThatIsSetWhileRankZeroLeaves) {
  Directory directory;
  auto one = open_store(directory.url(), "", 1, 2, soon());
  for (int i = 0; i < 300; i++) {
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    std::thread leaves([&] { zero.reset(); });
    // Before rank 0 leaves, in every moment of it, or after it.
    std::this_thread::sleep_for(std::chrono::microseconds(i % 150));
    one->set("key", "value", soon());
    leaves.join();
    ASSERT_TRUE(directory.empty()) << i;
  }
}

// Runs `body` in a child, which must end by itself or be killed by it.
void in_child(const std::function<void()>& body) {
  pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
}

TEST(FileStore, FilesOfAKilledJobMisleadNobody) {
  Directory directory;
  in_child([&] {
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    auto one = open_store(directory.url(), "", 1, 2, soon());
    zero->set("session", "old", soon());
    one->set("other", "old", soon());
    kill(getpid(), SIGKILL);
  });
  EXPECT_FALSE(directory.empty());
  {
    auto one = open_store(directory.url(), "", 1, 2, soon());
    EXPECT_FALSE(one->try_get("session", soon())) << "nobody who is alive has set it";
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    EXPECT_FALSE(zero->try_get("session", soon()));
    EXPECT_FALSE(one->try_get("other", soon()));
    zero->set("session", "new", soon());
    EXPECT_EQ(one->get("session", soon()), "new");
  }
  EXPECT_TRUE(directory.empty());
}

TEST(FileStore, ASurvivorCleansUpForAKilledRankZero) {
  Directory directory;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    zero->set("session", "old", soon());
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  {
    auto one = open_store(directory.url(), "", 1, 2, soon());
    EXPECT_EQ(one->get("session", soon()), "old");
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    EXPECT_FALSE(one->try_get("session", soon()));
  }
  EXPECT_TRUE(directory.empty());
  close(ready[0]);
  close(ready[1]);
}

TEST(FileStore, AValueIsForItsUserOnly) {
  Directory directory;
  auto zero = open_store(directory.url(), "", 0, 2, soon());
  zero->set("key", "value", soon());
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    EXPECT_EQ(entry.status().permissions() & std::filesystem::perms(077),
              std::filesystem::perms::none)
        << entry.path();
}

// ---- What others have put into the directory ----

constexpr uid_t kNobodyElse = 65534;
constexpr const char* kLock = "/ringcoll-store.lock";
constexpr const char* kSession = "/ringcoll-store.key.session";

/// A file that is nobody's business but its user's, outside of the store.
class Precious {
 public:
  Precious() { std::ofstream(path()) << kText; }
  std::string path() const { return directory_.path() + "/precious"; }
  void expect_untouched() const {
    std::ifstream file(path());
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), kText);
  }

 private:
  static constexpr const char* kText = "what the user needs";
  Directory directory_;
};

void expect_refused(const Error& error, const std::string& what) {
  EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
  for (const std::string& part : {what, std::string("tcp://"), std::string("uid ")})
    EXPECT_TRUE(contains(error, part)) << error.what();
}

TEST(FileStore, ALinkInThePlaceOfTheLockIsNotFollowed) {
  Precious precious;
  for (bool there : {true, false}) {
    Directory directory;
    fs::create_symlink(there ? precious.path() : directory.path() + "/nothing",
                       directory.path() + kLock);
    expect_refused(error_of([&] { open_store(directory.url(), "", 0, 2, soon()); }),
                   "ringcoll-store.lock is a symbolic link");
    auto one = open_store(directory.url(), "", 1, 2, soon());
    expect_refused(error_of([&] { one->get("session", soon()); }), "is a symbolic link");
    EXPECT_FALSE(fs::exists(directory.path() + "/nothing"));
  }
  precious.expect_untouched();
}

TEST(FileStore, WhatIsNoFileKeepsNobodyWaiting) {
  Directory directory;
  ASSERT_EQ(mkfifo((directory.path() + kLock).c_str(), 0600), 0);
  expect_refused(error_of([&] { open_store(directory.url(), "", 0, 2, soon()); }),
                 "ringcoll-store.lock is no regular file");
  auto one = open_store(directory.url(), "", 1, 2, soon());
  expect_refused(error_of([&] { one->get("session", soon()); }), "is no regular file");
}

TEST(FileStore, AnotherNameOfAFileInThePlaceOfTheLockIsRemovedAndTheFileStays) {
  Precious precious;
  Directory directory;
  fs::create_hard_link(precious.path(), directory.path() + kLock);
  {
    auto zero = open_store(directory.url(), "", 0, 2, soon());
    auto one = open_store(directory.url(), "", 1, 2, soon());
    zero->set("session", "new", soon());
    EXPECT_EQ(one->get("session", soon()), "new");
  }
  precious.expect_untouched();
  EXPECT_TRUE(directory.empty());
}

TEST(FileStore, ALinkInThePlaceOfAKeyIsNoValue) {
  Precious precious;
  Directory directory;
  auto zero = open_store(directory.url(), "", 0, 2, soon());
  auto one = open_store(directory.url(), "", 1, 2, soon());
  fs::create_symlink(precious.path(), directory.path() + kSession);
  for (Store* store : {zero.get(), one.get()}) {
    expect_refused(error_of([&] { store->try_get("session", soon()); }), "is a symbolic link");
    expect_refused(error_of([&] { store->set("session", "value", soon()); }), "is a symbolic link");
  }
  zero->remove("session", soon());
  fs::create_hard_link(precious.path(), directory.path() + kSession);
  EXPECT_FALSE(one->try_get("session", soon()));
  Error error = error_of([&] { one->set("session", "value", Deadline(seconds(0.05))); });
  EXPECT_TRUE(contains(error, "has 2 names")) << error.what();
  zero->remove("session", soon());
  one->set("session", "value", soon());
  EXPECT_EQ(zero->get("session", soon()), "value");
  precious.expect_untouched();
}

/// Runs `body` in a child of another user, and returns what it throws.
Error error_of_another_user(const std::function<void()>& body) {
  int channel[2];
  EXPECT_EQ(pipe(channel), 0);
  in_child([&] {
    if (setgid(kNobodyElse) != 0 || setuid(kNobodyElse) != 0) _exit(1);
    Error error = error_of(body);
    std::string text = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
    if (write(channel[1], text.data(), text.size()) < 0) _exit(1);
  });
  ::close(channel[1]);
  char text[4096] = "";
  EXPECT_GT(read(channel[0], text, sizeof text - 1), 0);
  ::close(channel[0]);
  std::string all = text;
  return Error(static_cast<Code>(std::atoi(text)), all.substr(all.find(' ') + 1));
}

class FileStoreOfTwoUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can be another user, too";
    fs::permissions(directory_.path(), fs::perms::all | fs::perms::sticky_bit);
  }
  Directory directory_;
};

TEST_F(FileStoreOfTwoUsers, TheSecondIsToldAtOnceWhoseItIs) {
  auto zero = open_store(directory_.url(), "", 0, 2, soon());
  auto start = Clock::now();
  for (Rank rank : {0, 1}) {
    Error error = error_of_another_user([&, rank] {
      open_store(directory_.url(), "", rank, 2, soon())->get("session", Deadline(seconds(60)));
    });
    expect_refused(error, "ringcoll-store.lock is a file of user root (uid 0)");
    EXPECT_TRUE(contains(error, fmt::format("(uid {})", kNobodyElse))) << error.what();
  }
  EXPECT_LT(to_seconds(Clock::now() - start), 20);
  EXPECT_NE(zero->remark().find("user root (uid 0)"), std::string::npos) << zero->remark();
}

TEST_F(FileStoreOfTwoUsers, FilesOfAnotherAreNeitherBelievedNorRemoved) {
  in_child([&] {
    if (setuid(kNobodyElse) != 0) _exit(1);
    std::ofstream(directory_.path() + kSession) << "a lie";
    std::ofstream(directory_.path() + "/ringcoll-store.tmp.1") << "of another job";
  });
  {
    auto zero = open_store(directory_.url(), "", 0, 2, soon());
    auto one = open_store(directory_.url(), "", 1, 2, soon());
    for (Store* store : {zero.get(), one.get()}) {
      expect_refused(error_of([&] { store->get("session", soon()); }),
                     "is a file of user nobody (uid 65534)");
      expect_refused(error_of([&] { store->set("session", "a lie", soon()); }), "uid 65534");
    }
  }
  EXPECT_TRUE(fs::exists(directory_.path() + kSession));
  EXPECT_TRUE(fs::exists(directory_.path() + "/ringcoll-store.tmp.1"));
  EXPECT_FALSE(fs::exists(directory_.path() + kLock));
}

}  // namespace
}  // namespace ringcoll

#include "net/event_loop.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/threads_testing.h"

namespace ringcoll {
namespace {

std::array<Fd, 2> make_pair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

// Counts up to a number that somebody waits for.
class Count {
 public:
  void add() {
    std::lock_guard lock(mutex_);
    value_++;
    changed_.notify_all();
  }
  bool reaches(int value) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return value_ >= value; });
  }
  int value() {
    std::lock_guard lock(mutex_);
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

void drain(int fd) {
  char bytes[64];
  while (read(fd, bytes, sizeof bytes) > 0) {
  }
}

TEST(EventLoop, CallsWhenReadableAndWhenHungUp) {
  EventLoop loop("test");
  auto ends = make_pair();
  Count read_calls, hangups;
  std::atomic<bool> on_loop{false};
  loop.watch(ends[0].get(), [&](uint32_t events) {
    on_loop = loop.on_loop_thread();
    if (events & EPOLLHUP) {
      loop.forget(ends[0].get());
      hangups.add();
      return;
    }
    drain(ends[0].get());
    read_calls.add();
  });
  EXPECT_EQ(write(ends[1].get(), "x", 1), 1);
  EXPECT_TRUE(read_calls.reaches(1));
  EXPECT_TRUE(on_loop);
  EXPECT_FALSE(loop.on_loop_thread());
  ends[1].reset();
  EXPECT_TRUE(hangups.reaches(1));
  EXPECT_EQ(hangups.value(), 1);
}

TEST(EventLoop, TimersRunInOrderOfTime) {
  EventLoop loop("test");
  std::vector<int> order;
  Count done;
  auto add = [&](int value) {
    return [&order, &done, value] {
      order.push_back(value);
      done.add();
    };
  };
  loop.after(seconds(0.05), add(2));
  loop.after(seconds(0.01), add(1));
  loop.after(seconds(3600), add(4));
  loop.after(seconds(0.09), add(3));
  ASSERT_TRUE(done.reaches(3));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoop, DropsTimersThatAreLeft) {
  auto held = std::make_shared<int>(0);
  {
    EventLoop loop("test");
    loop.after(seconds(3600), [held] { FAIL() << "called at the end"; });
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(EventLoop, ForgetWaitsForTheCallbackThatRuns) {
  EventLoop loop("test");
  auto ends = make_pair();
  Count entered;
  std::atomic<bool> left{false};
  loop.watch(ends[0].get(), [&](uint32_t) {
    entered.add();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = true;
  });
  EXPECT_EQ(write(ends[1].get(), "x", 1), 1);
  ASSERT_TRUE(entered.reaches(1));
  loop.forget(ends[0].get());
  EXPECT_TRUE(left);
  int calls = entered.value();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(entered.value(), calls) << "called after forget()";
  loop.forget(ends[0].get());  // nothing to forget is nothing wrong
}

TEST(EventLoop, SettleWaitsForOneThatHasForgottenItself) {
  EventLoop loop("test");
  loop.settle();
  auto ends = make_pair();
  Count forgot;
  std::atomic<bool> left{false};
  loop.watch(ends[0].get(), [&](uint32_t) {
    loop.forget(ends[0].get());
    forgot.add();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = true;
  });
  EXPECT_EQ(write(ends[1].get(), "x", 1), 1);
  ASSERT_TRUE(forgot.reaches(1));
  loop.settle();
  EXPECT_TRUE(left);
}

TEST(EventLoop, ACallbackMayForgetAndWatchItselfAgain) {
  EventLoop loop("test");
  auto ends = make_pair();
  Count first, second;
  loop.watch(ends[0].get(), [&, guard = std::make_shared<int>(7)](uint32_t) {
    loop.forget(ends[0].get());
    loop.watch(ends[0].get(), [&](uint32_t) {
      drain(ends[0].get());
      second.add();
    });
    EXPECT_EQ(*guard, 7);  // what a callback captured lives until it returns
    first.add();
  });
  EXPECT_EQ(write(ends[1].get(), "x", 1), 1);
  EXPECT_TRUE(second.reaches(1));
  EXPECT_EQ(first.value(), 1);
  loop.forget(ends[0].get());
}

TEST(EventLoop, TellsWhenWritable) {
  EventLoop loop("test");
  auto ends = make_pair();
  Count writable;
  loop.watch(ends[0].get(), [&](uint32_t events) {
    if (!(events & EPOLLOUT)) return;
    loop.also_writable(ends[0].get(), false);
    writable.add();
  });
  loop.also_writable(ends[0].get(), true);
  EXPECT_TRUE(writable.reaches(1));
  loop.forget(ends[0].get());
}

TEST(EventLoop, WatchAndForgetFromManyThreads) {
  EventLoop loop("test");
  std::vector<std::thread> threads;
  std::atomic<int> calls{0};
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; i++) {
        auto ends = make_pair();
        loop.watch(ends[0].get(), [&, fd = ends[0].get()](uint32_t) {
          drain(fd);
          calls++;
        });
        EXPECT_EQ(write(ends[1].get(), "x", 1), 1);
        if (i % 2) std::this_thread::yield();
        loop.forget(ends[0].get());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(calls, 400);
}

TEST(EventLoop, ItsThreadTakesNoSignals) {
  sigset_t mask;
  bool blocked = false;
  Count done;
  EventLoop loop("test");
  loop.after(Duration::zero(), [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGCHLD) == 1;
    done.add();
  });
  ASSERT_TRUE(done.reaches(1));
  EXPECT_TRUE(blocked);
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "the caller's mask has changed";
}

TEST(EventLoop, WithoutAThreadItIsTurnedByWhoMadeIt) {
  testing::in_a_child_of_another_user([] {
    testing::forbid_threads();
    EXPECT_THROW(EventLoop("test"), Error);
    EventLoop loop("test", EventLoop::Thread::kIfThereIsOne);
    EXPECT_TRUE(loop.threadless() && loop.on_loop_thread());
    auto [ours, theirs] = make_pair();
    int events = 0, late = 0;
    loop.watch(ours.get(), [&, fd = ours.get()](uint32_t) {
      events++;
      loop.forget(fd);  // in the callback
    });
    loop.turn(Duration::zero());
    EXPECT_EQ(events, 0);
    EXPECT_EQ(::write(theirs.get(), "x", 1), 1);
    loop.after(std::chrono::milliseconds(10), [&] { late++; });
    for (Deadline end(seconds(20)); late == 0 && !end.passed();) loop.turn(seconds(1));
    loop.settle();
    EXPECT_EQ(events, 1);
    EXPECT_EQ(late, 1);
  });
}

}  // namespace
}  // namespace ringcoll

#include "base/errands.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace ringcoll {
namespace {

TEST(Errands, RunAsideAndNoMoreThanSoManyAtOnce) {
  constexpr int kJobs = 50;
  Errands errands(3);
  std::atomic<int> now{0}, most{0}, ran{0};
  std::promise<void> all;
  for (int i = 0; i < kJobs; i++)
    EXPECT_TRUE(errands.run([&] {
      int running = ++now;
      for (int seen = most; seen < running && !most.compare_exchange_weak(seen, running);) {
      }
      now--;
      if (++ran == kJobs) all.set_value();
    }));
  all.get_future().get();
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 1);
}

// One that does not end keeps one thread, and the others go on.
TEST(Errands, DoNotWaitForOneThatIsLong) {
  Errands errands(2);
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  errands.run([released] { released.wait(); });
  for (int i = 0; i < 10; i++) {
    std::promise<void> done;
    errands.run([&] { done.set_value(); });
    done.get_future().get();
  }
  release.set_value();
}

TEST(Errands, ThatHaveNotBegunAreDroppedAtTheEnd) {
  auto errands = std::make_unique<Errands>(1);
  std::promise<void> began, release;
  std::atomic<int> ran{0};
  errands->run([&] {
    began.set_value();
    release.get_future().wait();
    ran++;
  });
  began.get_future().get();
  errands->run([&] { ran += 100; });
  auto ending = std::async(std::launch::async, [&] { errands->stop(); });
  while (errands->run([] {})) std::this_thread::yield();  // until it is being stopped
  release.set_value();
  ending.get();
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace ringcoll

#include "verbs/events.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "verbs/fake/fake_testing.h"
#include "verbs/pair_testing.h"

namespace ringcoll::verbs {
namespace {

UsablePort first_port() { return select_ports(survey(), Config{}).usable.at(0); }

bool readable(int fd, int limit_ms) {
  pollfd watched{fd, POLLIN, 0};
  return ::poll(&watched, 1, limit_ms) == 1;
}

TEST(Events, AreReadFromADescriptor) {
  FakeVerbs fake;
  Context context("fake0");
  EventReader events(context);
  EXPECT_FALSE(events.next());
  EXPECT_FALSE(readable(events.fd(), 0));
  fake.set_link("fake0", 1, false);
  fake.set_link("fake0", 1, true);
  ASSERT_TRUE(readable(events.fd(), 1000));
  auto down = events.next();
  ASSERT_TRUE(down);
  EXPECT_EQ(down->kind, EventKind::kPortDown);
  EXPECT_EQ(down->scope, EventScope::kPort);
  EXPECT_EQ(down->port, 1);
  EXPECT_EQ(down->text().find("port down [fake0:1]: the link is lost"), 0u) << down->text();
  EXPECT_EQ(events.next()->kind, EventKind::kPortUp);
  EXPECT_FALSE(events.next());
}

TEST(Events, OfEachKindAreTranslated) {
  FakeVerbs fake;
  Context context("fake0");
  EventReader events(context);
  for (EventKind kind : {EventKind::kDeviceFatal, EventKind::kLidChange, EventKind::kGidChange}) {
    fake.raise("fake0", kind, 1);
    auto event = events.next();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->kind, kind);
    EXPECT_GT(event->text().size(), 20u);
  }
}

TEST(Events, OfAQueuePairAreAcknowledgedBeforeItIsDestroyed) {
  FakeVerbs fake;
  {
    PairForTest ends(first_port());
    ends.connect();
    EventReader events(ends.context);
    fake.raise("fake0", EventKind::kQueuePairFatal, ends.a.pair.number());
    auto event = events.next();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->kind, EventKind::kQueuePairFatal);
    EXPECT_EQ(event->qp_num, ends.a.pair.number());
    EXPECT_EQ(ends.a.pair.query_state(), QueuePairState::kError);
    // One that nobody reads goes with its queue pair.
    fake.raise("fake0", EventKind::kQueuePairFatal, ends.b.pair.number());
    ends.b.pair.reset();
    EXPECT_FALSE(events.next());
  }
  EXPECT_TRUE(fake.misuses().empty());
  EXPECT_EQ(fake.objects_left(), 0);
}

TEST(Events, AThreadHandsThemOver) {
  FakeVerbs fake;
  Context context("fake0");
  std::mutex mutex;
  std::vector<EventKind> seen;
  std::atomic<size_t> count{0};
  {
    EventThread thread(context, [&](const Event& event) {
      std::lock_guard lock(mutex);
      seen.push_back(event.kind);
      count++;
    });
    fake.set_link("fake0", 1, false);
    fake.set_gids("fake0", 1, {{"10.0.0.2"}});
    Deadline deadline(seconds(10));
    while (count < 2 && !deadline.passed()) std::this_thread::yield();
  }
  fake.set_link("fake0", 1, true);  // nobody hears of it
  std::vector<EventKind> expected = {EventKind::kPortDown, EventKind::kGidChange};
  EXPECT_EQ(seen, expected);
}

TEST(Events, AThreadThatHasNothingToDoStops) {
  FakeVerbs fake;
  Context context("fake0");
  for (int i = 0; i < 20; i++) EventThread thread(context, [](const Event&) {});
}

}  // namespace
}  // namespace ringcoll::verbs

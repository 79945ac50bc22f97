#include "transport/shm/distance.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <new>
#include <thread>
#include <vector>

#include "shm/bell.h"
#include "transport/world_testing.h"

namespace ringcoll {
namespace {

using namespace testing;
using shm::DistanceLine;
using shm::DistanceMeter;
using State = Distance::State;
using std::chrono::milliseconds;

constexpr uint32_t kWants = uint32_t{1} << 31;
constexpr Duration kOld = std::chrono::hours(1);

/// The CPUs that this thread may run on, and has again at the end.
class Cpus {
 public:
  Cpus() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &before_)) all_.push_back(cpu);
  }
  ~Cpus() { ::sched_setaffinity(0, sizeof before_, &before_); }
  int first() const { return all_.front(); }
  int last() const { return all_.back(); }
  bool several() const { return all_.size() > 1; }
  static void run_on(int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }

 private:
  cpu_set_t before_;
  std::vector<int> all_;
};

struct Lines {
  alignas(shm::kApartBytes) DistanceLine leader{};
  alignas(shm::kApartBytes) DistanceLine other{};
};

/// The other end is a thread on the last CPU, this one on the first.
class ShmDistance : public ::testing::Test {
 protected:
  void SetUp() override { Cpus::run_on(cpus_.first()); }

  DistanceMeter leader() { return DistanceMeter({lines_.leader, lines_.other, 7, 9, true}); }
  DistanceMeter other() { return DistanceMeter({lines_.other, lines_.leader, 9, 7, false}); }
  /// A peer on some other CPU, with this test for a pen.
  void pretend_peer(DistanceLine& line, uint64_t base, bool wants) {
    line.told = 12345u | (wants ? kWants : 0);
    line.whose = base + 1;
  }
  /// Both take the distance, again where one of them did not run. Nobody gives way: on a busy
  /// machine they would never run at the same time.
  static void measure(DistanceMeter& here, DistanceMeter& there, int cpu_there) {
    std::atomic<int> begun = 0, come = 0;
    std::atomic<bool> over = false;
    auto meet = [&](int turn) {  // each as soon as the other is there
      come++;
      while (come < 2 * turn && !over) continue;
    };
    auto peer = std::async(std::launch::async, [&] {
      Cpus::run_on(cpu_there);
      for (int turn = 1; !over; turn++) {
        while (begun < turn && !over) continue;
        meet(turn);
        if (!over) there.take(Clock::now());
      }
    });
    Deadline deadline(seconds(60));
    for (int turn = 1; here.distance(Clock::now()).round_trip_ns == 0; turn++) {
      check(!deadline.passed(), Code::kTimeout, "the distance is not known");
      begun = turn;
      meet(turn);
      here.take(Clock::now());
    }
    over = true;
    peer.get();
  }

  Cpus cpus_;
  Lines lines_;
};

TEST_F(ShmDistance, IsFoundByBothAlike) {
  if (!cpus_.several()) return;
  DistanceMeter here = leader(), there = other();
  measure(here, there, cpus_.last());
  Distance a = here.distance(Clock::now()), b = there.distance(Clock::now());
  EXPECT_TRUE(a.state == State::kNear || a.state == State::kFar) << name_of(a.state);
  EXPECT_EQ(a.state, b.state);
  EXPECT_GT(a.round_trip_ns, 0);
  EXPECT_LT(a.round_trip_ns, 20000);
  EXPECT_EQ(a.round_trip_ns, b.round_trip_ns);
  EXPECT_GE(a.age, Duration::zero());
  EXPECT_LT(b.age, seconds(60));
  EXPECT_EQ(a.state == State::kNear, a.round_trip_ns < Distance::kMostNearNs);
}

TEST_F(ShmDistance, IsOfTheCpusOnWhichItWasFound) {
  if (!cpus_.several()) return;
  DistanceMeter here = leader(), there = other();
  measure(here, there, cpus_.last());
  Distance found = here.distance(Clock::now());
  uint32_t told = lines_.other.told;
  lines_.other.told = 12345;
  for (const DistanceMeter* end : {&here, &there})
    EXPECT_EQ(end->distance(Clock::now()).state, State::kUnknown) << "the peer has moved";
  lines_.other.told = told;
  EXPECT_EQ(here.distance(Clock::now()).round_trip_ns, found.round_trip_ns) << "and back";

  Cpus::run_on(cpus_.last());
  here.look(Clock::now(), kOld);
  for (const DistanceMeter* end : {&here, &there})
    EXPECT_EQ(end->distance(Clock::now()).state, State::kOneCore) << "this end has moved there";
  EXPECT_EQ(here.distance(Clock::now()).round_trip_ns, 0);
  Cpus::run_on(cpus_.first());
  here.look(Clock::now(), kOld);
  EXPECT_EQ(there.distance(Clock::now()).round_trip_ns, found.round_trip_ns);
}

TEST_F(ShmDistance, OnOneCpuNobodySpins) {
  DistanceMeter here = leader(), there = other();
  for (int i = 0; i < 100; i++)
    for (DistanceMeter* end : {&here, &there}) {
      i % 2 ? end->take(Clock::now()) : end->look(Clock::now(), Duration::zero());
      EXPECT_EQ(end->distance(Clock::now()).state, State::kOneCore);
      EXPECT_EQ(end->tries(), 0u);
    }
}

TEST_F(ShmDistance, IsAskedForWhenItIsOld) {
  if (!cpus_.several()) return;
  DistanceMeter here = leader(), there = other();
  measure(here, there, cpus_.last());
  Clock::time_point now = Clock::now() + seconds(10);
  here.look(now, seconds(1000));
  EXPECT_EQ(lines_.leader.told & kWants, 0u);
  here.look(now, seconds(5));
  EXPECT_EQ(lines_.leader.told & kWants, kWants);
  uint64_t tries = here.tries();
  for (int i = 0; i < 1000; i++) here.look(now, seconds(5));
  EXPECT_EQ(here.tries(), tries) << "the peer has not asked";
  lines_.other.told = lines_.other.told | kWants;
  here.look(now, seconds(5));
  EXPECT_EQ(here.tries(), tries + 1);
  EXPECT_NE(here.distance(now).state, State::kUnknown) << "it is what it was, and older";
  EXPECT_GE(here.distance(now).age, seconds(9));
}

TEST_F(ShmDistance, WhoIsAskedSpinsTheNextTimeOnly) {
  DistanceMeter here = other();
  pretend_peer(lines_.leader, 7, false);
  here.take(Clock::now());
  EXPECT_EQ(here.tries(), 1u);
  EXPECT_EQ(lines_.other.told & kWants, 0u);
  pretend_peer(lines_.leader, 7, true);
  Clock::time_point now = Clock::now() + DistanceMeter::kMostRest;
  here.look(now, kOld);
  EXPECT_EQ(here.tries(), 1u) << "the peer cannot know yet that this end wants to, too";
  EXPECT_EQ(lines_.other.told & kWants, kWants);
  here.look(now, kOld);
  EXPECT_EQ(here.tries(), 2u);
}

TEST_F(ShmDistance, IsQuietUntilAnEndSaysSomethingNewOrSomeTimeHasPassed) {
  DistanceMeter here = leader();
  pretend_peer(lines_.other, 9, false);
  EXPECT_FALSE(here.is_quiet()) << "it wants to know";
  Clock::time_point now = Clock::now();
  here.take(now);
  here.look(now, kOld);  // it rests
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < DistanceMeter::kQuiet; i++) EXPECT_TRUE(here.is_quiet());
    EXPECT_FALSE(here.is_quiet());
    here.look(now, kOld);
  }
  pretend_peer(lines_.other, 9, true);
  EXPECT_FALSE(here.is_quiet());
  here.look(now, kOld);
  EXPECT_TRUE(here.is_quiet()) << "it rests all the same";
  if (!cpus_.several()) return;
  Cpus::run_on(cpus_.last());
  EXPECT_FALSE(here.is_quiet());
}

// Who wants to and never comes.
TEST_F(ShmDistance, APeerThatDoesNotAnswerCostsLessAndLess) {
  for (bool leads : {true, false}) {
    DistanceMeter here = leads ? leader() : other();
    leads ? pretend_peer(lines_.other, 9, true) : pretend_peer(lines_.leader, 7, true);
    auto began = Clock::now();
    Clock::time_point now = began;
    for (int i = 0; i < 100'000; i++) here.look(now += std::chrono::microseconds(1), kOld);
    EXPECT_GE(here.tries(), 2u);
    EXPECT_LE(here.tries(), 5u) << "in a tenth of a second";
    for (int i = 0; i < 100'000; i++) here.look(now += milliseconds(1), kOld);
    EXPECT_LE(here.tries(), 5u + 7 + 100) << "in 100 s";
    EXPECT_EQ(here.distance(now).state, State::kUnknown);
    EXPECT_LT(Clock::now() - began, seconds(20));
  }
}

TEST_F(ShmDistance, WithoutAPeerNobodySpins) {
  DistanceMeter here = leader();
  for (uint64_t base : {uint64_t{0}, uint64_t{1} << 40}) {
    pretend_peer(lines_.other, base, true);  // of another part
    for (int i = 0; i < 100; i++) here.look(Clock::now(), kOld), here.take(Clock::now());
    EXPECT_EQ(here.tries(), 0u);
    EXPECT_EQ(here.distance(Clock::now()).state, State::kUnknown);
  }
}

TEST_F(ShmDistance, ALinkThatHasTheLinesOfAnotherBeginsAnew) {
  if (!cpus_.several()) return;
  DistanceMeter here = leader(), there = other();
  measure(here, there, cpus_.last());
  DistanceMeter later({lines_.leader, lines_.other, 70, 9, true});
  EXPECT_EQ(later.distance(Clock::now()).state, State::kUnknown);
  EXPECT_EQ(there.distance(Clock::now()).state, State::kUnknown) << "its peer has gone";
}

// Echoes, or leads, so many trips, and then goes away.
void make_trips(int trips, bool leads, DistanceLine& mine, const DistanceLine& theirs,
                const std::atomic<bool>& over) {
  uint64_t number = theirs.trip;
  for (int trip = 0; trip < trips; trip++) {
    if (leads) mine.trip = number += 2;
    while (leads ? theirs.trip != number : theirs.trip == number)
      if (over) return;
    if (!leads) mine.trip = number = theirs.trip;
  }
}

TEST_F(ShmDistance, WhoGoesAwayInTheMiddleIsNotWaitedFor) {
  for (bool leads : {true, false})
    for (int trips : {1, 2, 20}) {
      lines_.leader.found = 0;
      DistanceMeter here = leads ? leader() : other();
      DistanceLine &mine = leads ? lines_.leader : lines_.other,
                   &theirs = leads ? lines_.other : lines_.leader;
      pretend_peer(theirs, leads ? 9 : 7, true);
      std::atomic<bool> there = false, over = false;
      auto peer = std::async(std::launch::async, [&] {
        Cpus::run_on(cpus_.last());
        there = true;
        make_trips(trips, !leads, theirs, mine, over);
      });
      while (!there) std::this_thread::yield();
      auto began = Clock::now();
      here.take(began);
      over = true;
      peer.get();
      EXPECT_LT(Clock::now() - began, seconds(20));
      // Of 20 trips the leader has seen whole batches, and so may have found something.
      bool nothing = here.distance(Clock::now()).state == State::kUnknown;
      EXPECT_TRUE(nothing || (leads && trips == 20)) << leads << " " << trips;
    }
}

TEST_F(ShmDistance, AProcessThatIsKilledIsNotWaitedFor) {
  if (!cpus_.several()) return;
  void* memory =
      ::mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* lines = new (memory) Lines;
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Cpus::run_on(cpus_.last());
    DistanceMeter there({lines->other, lines->leader, 9, 7, false});
    while (true) there.take(Clock::now());
  }
  DistanceMeter here({lines->leader, lines->other, 7, 9, true});
  Deadline deadline(seconds(60));
  while (here.distance(Clock::now()).state == State::kUnknown && !deadline.passed())
    here.take(Clock::now());
  EXPECT_NE(here.distance(Clock::now()).state, State::kUnknown) << "of two processes";
  auto killer = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(2));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  });
  while (killer.wait_for(Duration::zero()) != std::future_status::ready) here.take(Clock::now());
  auto began = Clock::now();
  for (int i = 0; i < 100; i++) here.take(Clock::now());
  EXPECT_LT(Clock::now() - began, seconds(20));
  ::munmap(memory, sizeof(Lines));
}

// ---- Through links ----

TEST(ShmLink, KnowsItsDistance) {
  World world(*find_transport("shm"), 2, 1 << 16);
  PartWorld part(world, {1, 0}, 0, 1 << 15);
  auto known = [](Endpoint& here, Endpoint& there) {
    Deadline deadline(seconds(60));
    std::atomic<bool> over = false;
    auto peer = std::async(std::launch::async, [&] {
      while (!over) there.take_distance();
    });
    while (here.distance().state == State::kUnknown && !deadline.passed()) here.take_distance();
    over = true;
    peer.get();
    return here.distance().state != State::kUnknown &&
           here.distance().state == there.distance().state;
  };
  EXPECT_TRUE(known(world[0][1], world[1][0]));
  EXPECT_TRUE(known(part[0][1], part[1][0]));
}

TEST(ShmLink, WithABellHasNoDistance) {
  World world(*find_transport("shm"), 2, 1 << 16);
  Switchboard board;
  Bell bells[2];
  std::vector<std::unique_ptr<PartRank>> ranks;
  for (Rank r : {0, 1})
    ranks.push_back(std::make_unique<PartRank>(world[r], r, std::vector<Rank>{0, 1}, board,
                                               std::span(world[r].arena.data(), 1 << 15),
                                               &bells[r]));
  for (Rank r : {0, 1}) ranks[r]->connect(1 - r, ranks[1 - r]->transport->address());
  for (Rank r : {0, 1}) {
    (*ranks[r])[1 - r].take_distance();
    (*ranks[r])[1 - r].look_at_distance(Duration::zero());
    EXPECT_EQ((*ranks[r])[1 - r].distance().state, State::kUnknown);
  }
}

}  // namespace
}  // namespace ringcoll

// What two ranks do with the words that both look at, for Relacy (github.com/dvyukov/relacy), which
// runs it in every order and with every value that the memory model of C++ allows, or in very many
// of them at random. `models NAME` ends with 0 if a model is right in all, and with 1 if not, after
// the history of one in which it is wrong.
//
// Relacy has atomics of its own, and replaces operator new of the whole program, so this is a
// program by itself. Publishing and observing (base/order.h), falling asleep and waking
// (transport/shm/sleep.h) are the library's own code, as templates. Each model calls them in the
// order in which the library does, without what is beside it, and names the place.
//
// Names that end in "_not" lack one order, and have to be found wrong: or the check shows nothing.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "base/order.h"
#include "transport/shm/sleep.h"

// Last, for it defines macros of these names, for code that is written for it.
// clang-format off
#include <relacy/relacy.hpp>
// clang-format on
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst

namespace {

namespace shm = ringcoll::shm;
using ringcoll::observe;
using ringcoll::publish;
using std::memory_order_relaxed;

rl::memory_order relacys(std::memory_order order) {
  switch (order) {
    case memory_order_relaxed:
      return rl::mo_relaxed;
    case std::memory_order_acquire:
      return rl::mo_acquire;
    case std::memory_order_release:
      return rl::mo_release;
    default:
      return rl::mo_seq_cst;
  }
}

/// As std::atomic, begun with 0.
class Word {
 public:
  uint64_t load(std::memory_order order) const { return word_.load(relacys(order), $); }
  void store(uint64_t value, std::memory_order order) { word_.store(value, relacys(order), $); }

 private:
  rl::atomic<uint64_t> word_{0};
};

/// How a word is written and read, as by the library, or without an order.
struct Ordered {
  static void put(Word& word, uint64_t value) { publish(word, value); }
  static uint64_t get(const Word& word) { return observe(word); }
};
struct Unordered {
  static void put(Word& word, uint64_t value) { word.store(value, memory_order_relaxed); }
  static uint64_t get(const Word& word) { return word.load(memory_order_relaxed); }
};

/// What is no atomic: Relacy reports a race.
using Plain = rl::var<uint64_t>;

struct Fence {
  void operator()() const { rl::atomic_thread_fence(rl::mo_seq_cst, $); }
};
struct NoFence {
  void operator()() const {}
};

/// LinkSet::may_be_ready(), and ShmEndpoint::try_send() or release() with wake_peer(). So are
/// ShmPart::connected_by(), asked afterwards, and call_peer().
template <typename WakersOrder>
struct Bell : rl::test_suite<Bell<WakersOrder>, 2> {
  Word stamp, waiting, bell_fd, bell_inode;
  bool rung = false, ready = false;

  void thread(unsigned rank) {
    if (rank == 0) {
      publish(stamp, 1);
      if (!shm::sleeps(waiting, WakersOrder())) return;
      RL_ASSERT(bell_fd.load(memory_order_relaxed) == 7);
      RL_ASSERT(bell_inode.load(memory_order_relaxed) == 9);
      rung = true;
    } else {
      bell_fd.store(7, memory_order_relaxed);
      bell_inode.store(9, memory_order_relaxed);
      shm::fall_asleep(waiting, Fence());
      ready = observe(stamp) == 1;
    }
  }
  void after() { RL_ASSERT(rung || ready); }
};

/// One entry of a ring, used twice: try_send() with load_released(), try_recv() and release().
template <typename Stamp, typename Released>
struct Entry : rl::test_suite<Entry<Stamp, Released>, 2> {
  Word stamp, released;
  Plain payload;

  void thread(unsigned rank) {
    for (uint64_t number : {1, 2}) {
      if (rank == 0) {
        rl::linear_backoff wait;
        while (observe(released) + 1 < number) wait.yield($);
        payload($) = number;
        Stamp::put(stamp, number);
      } else {
        rl::linear_backoff wait;
        while (Stamp::get(stamp) != number) wait.yield($);
        RL_ASSERT(payload($) == number);
        Released::put(released, number);
      }
    }
  }
};

/// What is lent: fetch(), where the kernel reads, and revoke(), after which the caller writes. So
/// is what a message has lent (p2p/seal.h), where the kernel reads the word, too.
template <typename Order>
struct Lent : rl::test_suite<Lent<Order>, 2> {
  Word lends, memory;

  void before() { lends.store(1, memory_order_relaxed); }
  void thread(unsigned rank) {
    if (rank == 0) {
      lends.store(0, memory_order_relaxed);
      Order()();
      memory.store(1, memory_order_relaxed);
    } else {
      uint64_t read = memory.load(memory_order_relaxed);
      Order()();
      if (lends.load(memory_order_relaxed) == 1) RL_ASSERT(read == 0);
    }
  }
};

/// A block of units that one rank has read for the last time, and its owner writes anew:
/// Reserve::give_back() and Witness::has_ended().
template <typename Open>
struct Block : rl::test_suite<Block<Open>, 2> {
  Word open;
  Plain unit;

  void before() {
    open.store(5, memory_order_relaxed);
    unit($) = 1;
  }
  void thread(unsigned rank) {
    if (rank == 0) {
      RL_ASSERT(unit($) == 1);
      Open::put(open, 0);
    } else if (observe(open) != 5) {
      unit($) = 2;
    }
  }
};

/// CallLog::add() and at(), with places for two calls, which are two words each.
template <typename Stored, typename Loaded>
struct Log : rl::test_suite<Log<Stored, Loaded>, 2> {
  static constexpr uint64_t kKept = 2;
  Word words[kKept][2], latest;

  void thread(unsigned rank) {
    if (rank == 0) {
      for (uint64_t n : {1, 2, 3}) {
        for (Word& word : words[n % kKept]) Stored::put(word, n);
        publish(latest, n);
      }
      return;
    }
    uint64_t n = observe(latest);
    if (n == 0) return;
    uint64_t first = Loaded::get(words[n % kKept][0]);
    uint64_t second = Loaded::get(words[n % kKept][1]);
    if (n + kKept <= latest.load(memory_order_relaxed) + 1) return;
    RL_ASSERT(first == n && second == n);
  }
};

template <typename Model>
bool is_right() {
  rl::test_params parameters;
  parameters.search_type = rl::sched_full;
  parameters.output_stream = &std::cout;
  parameters.progress_stream = &std::cout;
  bool right = rl::simulate<Model>(parameters);
  std::cout << parameters.stop_iteration << " executions\n";
  return right;
}

const std::map<std::string, std::function<bool()>> kModels = {
    {"bell", is_right<Bell<Fence>>},
    {"bell_not", is_right<Bell<NoFence>>},
    {"entry", is_right<Entry<Ordered, Ordered>>},
    {"entry_stamp_not", is_right<Entry<Unordered, Ordered>>},
    {"entry_released_not", is_right<Entry<Ordered, Unordered>>},
    {"lent", is_right<Lent<Fence>>},
    {"lent_not", is_right<Lent<NoFence>>},
    {"block", is_right<Block<Ordered>>},
    {"block_not", is_right<Block<Unordered>>},
    {"log", is_right<Log<Ordered, Ordered>>},
    {"log_stored_not", is_right<Log<Unordered, Ordered>>},
    {"log_loaded_not", is_right<Log<Ordered, Unordered>>},
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2 || !kModels.contains(arguments[1])) {
    for (const auto& [name, model] : kModels) std::puts(name.c_str());
    return count == 1 ? 0 : 2;
  }
  return kModels.at(arguments[1])() ? 0 : 1;
}

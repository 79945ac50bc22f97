// Decides which thread makes progress on work of a communicator that several threads wait for. The
// work is its calls, or its messages.
//
// One thread at a time has the **role**: it drives all of the work. A thread that waits takes the
// role if it is free, and otherwise sleeps. While no thread waits, a thread of the library has it.
// A caller that finds nothing else to do may take it, too (try_take()), and close() takes it for
// good.
//
// - A thread leaves the role (enough()) when what it waits for is over, or its limit has passed.
//   The library's thread also leaves it when another thread waits. Every thread leaves it when the
//   driver is closed.
// - A thread that leaves the role wakes up one sleeper that may drive. If there is none and work
//   is left, it wakes up the library's thread. A waiting thread that ends its wait without the role
//   does the same. So the role is never free while a sleeper could take it.
// - The library's thread takes the role when it is called. While threads that wait drive, it
//   naps, and takes the role only if nobody has driven during a nap. So it does not disturb them.
// - Callbacks run without the lock, in a thread that drives or waits, or in the library's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace ringcoll {

/// Any thread. Methods are called with the lock, unless they say otherwise. Methods that take a
/// Lock may release it meanwhile.
class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Limit = std::optional<Clock::time_point>;

  /// What a thread waits for.
  class Awaited {
   public:
    virtual ~Awaited() = default;
    /// Called with the lock; the thread that drives also calls it without the lock.
    virtual bool is_over() const = 0;
  };

  /// The work that is driven. The driver does not use it after close() has returned.
  class Work {
   public:
    virtual ~Work() = default;
    /// True if the role must not stay free. Called with the lock, but by release() without it.
    virtual bool has_work() const = 0;
    /// Makes progress until enough() is true, the limit has passed, or nothing is left. `awaited`:
    /// null if the thread waits for nothing itself.
    virtual void drive(Lock& lock, Awaited* awaited, Limit limit) = 0;
    /// Makes the thread that drives check enough() again. Called with the lock.
    virtual void wake() = 0;
    /// Runs one callback that waits for the library's thread. False: there is none.
    virtual bool call_back(Lock&) { return false; }
  };

  /// `work` lives until close() has returned. `name` is that of the library's thread.
  Driver(Work& work, const char* name) : work_(work), name_(name) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Takes the lock, which also guards the work.
  Lock enter();
  /// Lets threads in that wait for the lock. A thread that drives with the lock calls this now and
  /// then, since a mutex is not fair.
  void let_others_in(Lock& lock);

  /// Creates the library's thread, which drives work that nobody waits for. Throws
  /// Error(kTransport).
  void make_thread();
  /// Waits until `awaited` is over, and drives meanwhile if no other thread does. Returns false if
  /// the limit passed first. `drives`: false if only a callback of another thread is awaited.
  bool wait(Lock& lock, Awaited& awaited, Limit limit, bool drives = true);
  /// Wakes up the sleepers whose wait is over. True if there were any.
  bool wake_those_over();
  /// Tells the library's thread of work that perhaps nobody waits for.
  void call_thread();
  /// Tells the library's thread of a callback that it has to run. It looks at once, even during a
  /// nap.
  void call_thread_back();
  /// Passes a free role to a sleeper, otherwise to the library's thread if there is work. If that
  /// thread cannot be made, drives here until the limit.
  void hand_over(Lock& lock, Limit limit);
  /// Asks the interrupted() of this thread's blocking call if that is due. True if it was asked.
  static bool attend(Lock& lock);

  // Called without the lock, by a caller that finds no work and drives its own.
  bool try_take() { return !driven_.exchange(true); }
  void release();

  // For the thread that drives, with the lock or without it:
  /// True if the thread is to leave the role. Work::drive() checks its limit itself.
  bool enough() const {
    if (closing_) return true;
    return driven_for_ ? driven_for_->is_over() : sleepers_ > 0 && !needs_patience_;
  }
  /// True if this thread may make a next step that blocks without checking the limit. If false, it
  /// leaves the role, which then only a thread without a limit takes.
  bool may_block(bool limited) { return !(needs_patience_ = limited); }

  bool is_driven() const { return driven_; }
  /// True if a caller of try_take() has the role.
  bool is_taken() const { return driven_ && !driving_; }
  bool is_closing() const { return closing_; }

  /// While one lives, close() does not return. It is made and destroyed with the lock.
  class Inside {
   public:
    explicit Inside(Driver& driver) : driver_(driver) { driver_.inside_++; }
    ~Inside() { driver_.inside_--, driver_.changed_.notify_all(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Driver& driver_;
  };

  /// Takes the role for good, and calls finish() with the lock, which must end all that is waited
  /// for. Then ends the library's thread. Returns when no thread is in the driver any more. Called
  /// once, and not from a callback.
  void close(Lock& lock, const std::function<void()>& finish);

 private:
  struct Sleeper {
    Awaited& awaited;
    bool drives, limited;
    std::condition_variable changed = {};
    bool woken = false;
  };

  void drive(Lock& lock, Awaited* awaited, Limit limit);
  bool may_drive(const Sleeper& sleeper) const;
  bool waited_for() const;
  void sleep(Lock& lock, Awaited& awaited, Limit limit, bool drives);
  void wake(Sleeper& sleeper);
  bool has_thread();
  bool should_take_over(bool quiet) const;
  void work();

  Work& work_;
  const char* const name_;
  std::mutex mutex_;
  std::atomic<int> entering_ = 0;  // threads that wait for the lock, or were woken up to take it

  std::atomic<bool> driven_ = false;          // a thread has the role
  bool driving_ = false;                      // that thread is in Work::drive()
  Awaited* driven_for_ = nullptr;             // what that thread waits for; null: nothing
  std::atomic<bool> needs_patience_ = false;  // only threads without a limit take the role
  uint64_t drives_ = 0;                       // how often the role was taken with the lock
  std::vector<Sleeper*> asleep_;
  std::atomic<int> sleepers_ = 0;    // those of asleep_ that were not woken up and could drive
  int inside_ = 0;                   // living objects of Inside
  std::condition_variable changed_;  // the role was left, or a thread is not inside any more
  std::atomic<bool> closing_ = false;

  std::thread thread_;
  std::condition_variable call_;
  bool thread_sleeps_ = false;  // the thread sleeps until it is called, and does not nap
  bool called_ = false;         // it is to look for work
  bool at_once_ = false;        // it is to look at once, even during a nap
  bool stopping_ = false;
};

}  // namespace ringcoll

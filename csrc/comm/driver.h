// Who makes progress on work of a communicator that several threads wait for: its calls, or its
// messages.
//
// One thread at a time has the **role** of driving all of it. A thread that waits takes the role if
// it is free, and else sleeps. While nobody waits, a thread of the library has it. The role is also
// taken by a caller that finds nothing else to do (try_take), and by who closes.
//
// - Who drives leaves the role (enough()) when what it waits for is over, or its limit has passed;
//   the library's thread also when another thread waits; all do when the driver is closed.
// - Who leaves wakes one sleeper that may drive. If there is none and work is left, it wakes the
//   library's thread. A sleeper that leaves without the role does the same, so the role is never
//   free while somebody sleeps who could take it.
// - The library's thread takes the role when it is called; while those who wait drive, only once
//   nobody has driven during a nap, so that it does not disturb them.
// - Callbacks run without the lock: in a thread that drives or waits, or in the library's.
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

/// Any thread. Methods are called with the lock, unless they say otherwise. Those with a Lock may
/// give it up and take it again.
class Driver {
 public:
  using Lock = std::unique_lock<std::mutex>;
  using Limit = std::optional<Clock::time_point>;

  /// What a thread waits for.
  class Awaited {
   public:
    virtual ~Awaited() = default;
    /// Called with the lock, and without it by who drives.
    virtual bool is_over() const = 0;
  };

  /// What is driven. Not used any more when close() has returned.
  class Work {
   public:
    virtual ~Work() = default;
    /// Whether the role must not stay free. With the lock; release() calls it without.
    virtual bool has_work() const = 0;
    /// Makes progress until enough(), or nothing is left. `awaited`: null for the library's thread.
    virtual void drive(Lock& lock, Awaited* awaited, Limit limit) = 0;
    /// Makes whoever drives look at enough() again. With the lock.
    virtual void wake() = 0;
    /// Runs one callback that waits for the library's thread. False: there is none.
    virtual bool call_back(Lock&) { return false; }
  };

  /// `work` lives until close() has returned. `name` is that of the library's thread.
  Driver(Work& work, const char* name) : work_(work), name_(name) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// Takes the lock, which guards the work too.
  Lock enter();
  /// A mutex is not fair, so who drives with the lock calls this now and then.
  void let_others_in(Lock& lock);

  /// Creates the library's thread, which drives what nobody waits for. Throws Error(kTransport).
  void make_thread();
  /// Waits until it is over, and drives meanwhile if nobody else does. Returns false if the limit
  /// passed first. `drives`: false if only another thread's callback is waited for.
  bool wait(Lock& lock, Awaited& awaited, Limit limit, bool drives = true);
  /// Wakes the sleepers whose wait is over. True if there were any.
  bool wake_those_over();
  /// There is work that nobody may be waiting for.
  void call_thread();
  /// There is a callback for the library's thread.
  void call_thread_back();
  /// Leaves a free role to one who sleeps, else to the library's thread if there is work. Where
  /// that thread cannot be made, drives here until the limit.
  void hand_over(Lock& lock, Limit limit);
  /// Asks the interrupted() of this thread's blocking call if that is due. True if it was asked.
  static bool attend(Lock& lock);

  // Without the lock, for a caller that finds no work, and drives its own.
  bool try_take() { return !driven_.exchange(true); }
  void release();

  // For who drives, with the lock or without it:
  /// Whether to leave the role; Work::drive() looks at its limit itself.
  bool enough() const {
    if (closing_) return true;
    return driven_for_ ? driven_for_->is_over() : sleepers_ > 0 && !needs_patience_;
  }
  /// Whether this thread may go on though the next step blocks without a look at its limit. If not,
  /// it leaves the role, which only a thread without a limit takes then.
  bool may_block(bool limited) { return !(needs_patience_ = limited); }

  bool is_driven() const { return driven_; }
  /// By a caller of try_take().
  bool is_taken() const { return driven_ && !driving_; }
  bool is_closing() const { return closing_; }

  /// While it lives, which is with the lock, close() does not return.
  class Inside {
   public:
    explicit Inside(Driver& driver) : driver_(driver) { driver_.inside_++; }
    ~Inside() { driver_.inside_--, driver_.changed_.notify_all(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Driver& driver_;
  };

  /// Takes the role for good, calls finish() with the lock, which has to bring about the end of all
  /// that is waited for, and ends the library's thread. Returns when no thread is in the driver any
  /// more. Once, and not from a callback.
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
  std::atomic<int> entering_ = 0;  // threads that wait for the lock, or were woken to take it

  std::atomic<bool> driven_ = false;  // somebody has the role
  bool driving_ = false;              // and it is in Work::drive()
  Awaited* driven_for_ = nullptr;     // what it waits for; null: nothing
  std::atomic<bool> needs_patience_ = false;
  uint64_t drives_ = 0;  // times that the role was taken with the lock
  std::vector<Sleeper*> asleep_;
  std::atomic<int> sleepers_ = 0;  // of them, those that were not woken and could drive
  int inside_ = 0;
  std::condition_variable changed_;  // the role was left, or a thread is not inside any more
  std::atomic<bool> closing_ = false;

  std::thread thread_;
  std::condition_variable call_;
  bool thread_sleeps_ = false;  // until it is called
  bool called_ = false;         // to look for work
  bool at_once_ = false;        // even while it naps
  bool stopping_ = false;
};

}  // namespace ringcoll

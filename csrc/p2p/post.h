// The messages with tags of a communicator: who moves them, and what becomes of them. Any thread
// sends, receives and waits at any time.
//
// One thread at a time has the **role** of moving all messages: one that waits for one of them,
// else the library's thread, which the first transfer starts that nobody waits for and which sleeps
// while there is nothing to do. Who waits meanwhile sleeps until its own has ended, or until
// whoever had the role leaves it. Under the lock anybody may use the channels, but for the time in
// which who has the role is blocked in MessageChannels::wait(), without the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "life/farewell.h"
#include "life/lifelines.h"
#include "mesh/group/messages.h"
#include "p2p/courier.h"
#include "p2p/transfer.h"

namespace ringcoll {

class Post {
 public:
  struct Options {
    Rank rank = 0;
    Rank size = 1;
    Health& health;
    double timeout_s = 0;                       // of transfers that have none of their own
    bool yields = false;                        // polling has to give the CPU away
    std::function<std::string(Rank)> describe;  // "rank 3 (pid 4711 on node17)"
    Courier::Limits limits = {};
  };
  /// `channels` is asked once, by the first transfer; they and what `options` refers to live until
  /// close() has returned.
  Post(std::function<MessageChannels&()> channels, Options options);
  ~Post() { close(); }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  /// Moves it to its end in this thread, or waits until another has. Throws its error; its `done`
  /// is not called.
  void run(Transfer& transfer);
  /// Ends a transfer that this thread runs, and whose wait has called Interruption::look(): alone
  /// if its peer has not met it, else by the poison of the group.
  void interrupt(Transfer& transfer);
  /// Returns at once; the transfer stays where it is until it has ended. Throws Error if it was
  /// refused; then it has not begun, and `done` is not called.
  void start(Transfer& transfer);
  /// Returns once the transfer has ended and its `done` has returned; within `done` at once. False
  /// if `limit_s` passed first (negative: no limit).
  bool wait(Transfer& transfer, double limit_s);
  /// Whether a wait would return at once.
  bool has_ended(Transfer& transfer);
  /// No new transfers; all that have not ended do, with kAborted. What was sent is with the
  /// channels, unless peers do not take it for a second. Returns when all callbacks have, and no
  /// thread waits here any more. Not from a callback.
  void close();

  MessageCounts counts();

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Waiter {
    Transfer* transfer;
    std::condition_variable changed = {};
    bool called = false;
    Hook<Waiter> place = {};
  };

  // With the lock, which they may give up and take again where it is passed.
  Lock enter();
  void let_others_in(Lock& lock);
  void begin(Lock& lock, Transfer& transfer);
  [[noreturn]] void refuse(Lock& lock, const Transfer& transfer);
  bool await(Lock& lock, Transfer& transfer, std::optional<Clock::time_point> limit);
  bool attend(Lock& lock);
  void sleep(Lock& lock, Transfer& transfer, std::optional<Clock::time_point> limit);
  void over(Transfer* transfer);
  void call(Waiter& waiter);
  void tell(Lock& lock, Transfer& transfer);
  void hand_over(Lock& lock, std::optional<Clock::time_point> limit);
  void make_thread(Lock& lock);
  bool has_thread();
  void wake_if_due(Lock& lock);
  bool waited_for() const;

  void drive(Lock& lock, Transfer* mine, std::optional<Clock::time_point> limit);
  bool enough(const Transfer* mine) const;
  template <typename Body>
  bool step(Lock& lock, Body&& body);
  void rest(Lock& lock, Transfer* mine, std::optional<Clock::time_point> limit);
  void block(Lock& lock, std::optional<Clock::time_point> limit);
  void set_due(Transfer& transfer);
  bool look_around(Lock& lock);
  void forgive_stop(Duration waited);
  Duration limit_of(const Transfer& transfer) const;
  bool expire_one(Lock& lock, Clock::time_point now);
  void expire(Lock& lock, Transfer& late);
  Error unmatched(const Transfer& late) const;
  void tell_of_long_waits(Clock::time_point now);
  void look_for_gone();
  bool has_left(Rank rank);
  bool react_to_breaks(Lock& lock);
  void fail_group(Lock& lock, const Error& error);
  void end_all(const Error& error);

  bool work_left() const;
  void call_thread();
  void work();
  void nap(Lock& lock);
  void sleep_until_called(Lock& lock);
  void finish(Lock& lock);

  std::function<MessageChannels&()> make_channels_;
  const Options options_;
  std::mutex mutex_;
  std::atomic<int> entering_{0};  // threads that wait for the lock
  MessageChannels* channels_ = nullptr;
  std::unique_ptr<Courier> courier_;  // from the first transfer on
  std::optional<Error> failed_;
  size_t breaks_ = 0;  // of the courier, that were looked at
  std::map<Rank, Farewell> farewells_;
  bool alone_ = false;  // all others were found to have left
  Clock::time_point next_look_{};

  List<Transfer, &Transfer::among_all> all_;  // whose outcome is not known
  uint64_t begun_ = 0;
  size_t started_ = 0;  // of them, those that were started
  Transfers untold_;    // whose `done` is to be called
  List<Waiter, &Waiter::place> waiters_;
  int inside_ = 0;  // threads that wait, or wake one that is blocked

  bool driven_ = false;     // somebody has the role
  bool by_thread_ = false;  // the library's thread
  const Transfer* driven_for_ = nullptr;
  bool blocked_ = false;   // in MessageChannels::wait()
  bool wake_due_ = false;  // and is to leave it
  uint64_t drives_ = 0;
  std::condition_variable left_;  // the role, or a wait
  bool closing_ = false, closed_ = false, stopping_ = false;

  std::thread thread_;
  std::condition_variable work_;
  bool asleep_ = false;  // the thread, until it is called
};

}  // namespace ringcoll

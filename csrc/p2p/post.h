// The messages with tags of a communicator: who moves them, and what becomes of them. Any thread
// sends, receives and waits at any time.
//
// One thread at a time moves all messages (comm/driver.h), with the lock. The library's thread is
// made by the first transfer that nobody waits for. Under the lock anybody may use the channels,
// but for the time in which who drives is blocked in MessageChannels::wait(), without the lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "comm/driver.h"
#include "life/farewell.h"
#include "life/lifelines.h"
#include "mesh/group/messages.h"
#include "p2p/courier.h"
#include "p2p/transfer.h"

namespace ringcoll {

class Post final : private Driver::Work {
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
  ~Post() override { close(); }
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
  using Lock = Driver::Lock;
  using Limit = Driver::Limit;
  class Outcome;
  class Told;

  // Of the driver.
  bool has_work() const override { return started_ > 0 || (courier_ && courier_->owes()); }
  void drive(Lock& lock, Driver::Awaited* awaited, Limit limit) override;
  void wake() override;
  bool call_back(Lock& lock) override;

  // With the lock, which they may give up and take again where it is passed.
  void begin(Lock& lock, Transfer& transfer);
  [[noreturn]] void refuse(Lock& lock, const Transfer& transfer);
  bool await(Lock& lock, Transfer& transfer, Limit limit);
  void over(Transfer* transfer);
  void tell(Lock& lock, Transfer& transfer);
  void make_thread(Lock& lock);
  void wake_if_due(Lock& lock);

  bool enough() const;
  template <typename Body>
  bool step(Lock& lock, Body&& body);
  void rest(Lock& lock, Limit limit);
  void block(Lock& lock, Limit limit);
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

  void finish(Lock& lock);

  std::function<MessageChannels&()> make_channels_;
  const Options options_;
  Driver driver_{*this, "ringcoll-post"};  // has the lock
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

  Transfer* driven_for_ = nullptr;
  bool blocked_ = false;   // who drives is in MessageChannels::wait()
  bool wake_due_ = false;  // and is to leave it
};

}  // namespace ringcoll

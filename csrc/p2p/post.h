// Runs the sends and receives of one communicator, and the waits for them. Any thread sends,
// receives and waits at any time.
//
// One thread at a time moves all messages (comm/driver.h). It holds the driver's lock, except while
// it blocks in MessageChannels::wait(). Any thread with the lock may use the channels, except
// during such a wait. The first start() creates the library's thread.
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
    double timeout_s = 0;                       // the default of transfers
    bool yields = false;                        // ranks share cores, so this rank polls less
    std::function<std::string(Rank)> describe;  // "rank 3 (pid 4711 on node17)"
    Courier::Limits limits = {};
  };
  /// `channels` is called once, by the first transfer. The channels, and what `options` refers to,
  /// live until close() has returned.
  Post(std::function<MessageChannels&()> channels, Options options);
  ~Post() override { close(); }
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  /// Moves the transfer to its end in this thread, or waits while another thread does. Throws its
  /// error. Its `done` is not called.
  void run(Transfer& transfer);
  /// Ends a transfer of this thread's run(), whose wait has called Interruption::look(). The
  /// transfer ends alone if the peer has not matched it, or if it is a copied send that is with the
  /// channel (Courier::end_early). Otherwise the group is poisoned.
  void interrupt(Transfer& transfer);
  /// Returns at once. The transfer stays in place until it has ended. Throws Error if it is
  /// refused: then it has not begun, and `done` is not called.
  void start(Transfer& transfer);
  /// Returns once the transfer has ended and its `done` has returned; inside `done` it returns at
  /// once. False if `limit_s` passes first (negative: no limit).
  bool wait(Transfer& transfer, double limit_s);
  /// Whether wait() would return at once.
  bool has_ended(Transfer& transfer);
  /// Refuses new transfers, and ends the pending ones with kAborted. Before that it waits, for a
  /// second at most, until the channels have what was sent. If they still use memory of callers
  /// then, the group is poisoned. Returns when all callbacks have returned and no thread waits
  /// here. Not from a callback.
  void close();

  MessageCounts counts();

 private:
  using Lock = Driver::Lock;
  using Limit = Driver::Limit;
  class Outcome;
  class Told;

  // Driver::Work.
  bool has_work() const override { return started_ > 0 || (courier_ && courier_->owes()); }
  void drive(Lock& lock, Driver::Awaited* awaited, Limit limit) override;
  void wake() override;
  bool call_back(Lock& lock) override;

  // Called with the lock. A function with a `lock` may release it and take it again.
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
  Driver driver_{*this, "ringcoll-post"};  // owns the lock
  MessageChannels* channels_ = nullptr;
  std::unique_ptr<Courier> courier_;  // made by the first transfer
  std::optional<Error> failed_;
  size_t breaks_ = 0;  // Courier::broken() when it was last handled
  std::map<Rank, Farewell> farewells_;
  bool alone_ = false;  // all other ranks have left
  Clock::time_point next_look_{};

  List<Transfer, &Transfer::among_all> all_;  // transfers without an outcome
  uint64_t begun_ = 0;
  size_t started_ = 0;  // of all_, those of start()
  Transfers untold_;    // those whose `done` has not been called yet

  Transfer* driven_for_ = nullptr;  // what the driving thread waits for
  bool blocked_ = false;            // the driving thread is in MessageChannels::wait()
  bool wake_due_ = false;           // that thread must be woken up
};

}  // namespace ringcoll

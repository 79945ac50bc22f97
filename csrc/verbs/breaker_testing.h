// Breaks the queue pairs of this process, whatever device they are of.
#pragma once

#include <cstddef>
#include <memory>

namespace ringcoll::verbs {

/// One at a time; made before the queue pairs, and outlives them.
class QueuePairBreaker {
 public:
  QueuePairBreaker();
  ~QueuePairBreaker();
  QueuePairBreaker(const QueuePairBreaker&) = delete;
  QueuePairBreaker& operator=(const QueuePairBreaker&) = delete;

  /// How many there are. Any thread.
  size_t queue_pairs() const;
  /// Drives the oldest to the error state, as a device does that finds it broken. False if there is
  /// none. Any thread.
  bool break_oldest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll::verbs

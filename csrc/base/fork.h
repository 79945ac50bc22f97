// What a child of fork(2) has of this library: memory, but none of its threads, and none of its
// descriptors. A lifeline that a data loader's worker held open would hide for as long as the
// worker lives that its parent has died; a listener would keep the port taken.
#pragma once

#include <mutex>

namespace ringcoll {

/// How many forks led to this process since the library was loaded. What was made at another number
/// belongs to a parent: its threads are not here. Any thread.
int fork_number();

/// As long as one exists no thread forks. Brief: for making and closing descriptors.
class NoFork {
 public:
  NoFork();

  /// A child gets a descriptor in its place on which nothing ever happens, so that the number stays
  /// taken until its owner closes it there.
  void keep_from_children(int fd);
  /// It is about to be closed.
  void forget(int fd);

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace ringcoll

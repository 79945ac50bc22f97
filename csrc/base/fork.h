// What a child of fork(2) keeps of this library: memory, but none of its threads and none of its
// descriptors. Otherwise a data loader's worker that held a lifeline open would hide the death of
// its parent. A listener that it held open would keep the port taken.
#pragma once

#include <mutex>

namespace ringcoll {

/// How many forks led to this process since the library was loaded. An object made at another
/// number belongs to a parent, and its threads do not exist here. Any thread.
int fork_number();

/// While one exists, no thread forks. To be held briefly, while descriptors are made and closed.
class NoFork {
 public:
  NoFork();

  /// A child gets another descriptor at this number, on which nothing ever happens. So the number
  /// stays taken there until its owner closes it.
  void keep_from_children(int fd);
  /// The caller is about to close `fd`.
  void forget(int fd);

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace ringcoll

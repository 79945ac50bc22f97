// Whether a process that has registered memory may fork(), as a data loader does. Before Linux
// 5.12, the parent's next write after a fork() moves the page away from the device, unless
// ibv_fork_init() was called before anything was registered. Since then the child gets the copy,
// and nothing needs to be done.
#pragma once

#include <string>

namespace ringcoll::verbs {

enum class ForkSupport {
  kUnneeded,  // the kernel copies registered pages for the child
  kEnabled,   // ibv_fork_init() keeps registered pages from the child
  kDisabled,  // a fork() may corrupt what the device writes
};

/// In words, with the remedy.
std::string describe(ForkSupport support);

/// What table() found when it loaded the library (kDisabled before that).
ForkSupport fork_support();

}  // namespace ringcoll::verbs

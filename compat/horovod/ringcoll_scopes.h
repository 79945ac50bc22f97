// Scopes of Horovod's rendezvous server for Gloo. Each meeting of ranks has its own, so that no
// rank finds an address of an earlier meeting.
#pragma once

#include <map>
#include <string>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// For Horovod's background thread.
class RingcollScopes {
 public:
  static RingcollScopes& Get();

  /// Called before the first Next() of a life. In an elastic job some ranks are new, and the server
  /// forgets everything between lives, so counting starts again. In other jobs all ranks count
  /// alike from the beginning of the process.
  void BeginLife(bool elastic);

  /// The scope of the next meeting of the ranks that use this prefix; equal on all of them.
  std::string Next(const std::string& prefix);

 private:
  std::map<std::string, int> meetings_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

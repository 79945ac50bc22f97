// Scopes of Horovod's rendezvous server, for Gloo: each meeting of ranks has one of its own, so
// that no rank finds an address of an earlier one.
#pragma once

#include <map>
#include <string>

#pragma GCC visibility push(hidden)
namespace horovod {
namespace common {

/// On Horovod's background thread.
class RingcollScopes {
 public:
  static RingcollScopes& Get();

  /// Before the first Next() of a life. In an elastic job some ranks are new, and the server
  /// forgets everything between lives; in others all ranks count alike from the beginning of the
  /// process.
  void BeginLife(bool elastic);

  /// The scope for the next meeting of the ranks that use this prefix, alike on all of them.
  std::string Next(const std::string& prefix);

 private:
  std::map<std::string, int> meetings_;
};

}  // namespace common
}  // namespace horovod
#pragma GCC visibility pop

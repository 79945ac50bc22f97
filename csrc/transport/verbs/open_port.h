// An open port of a device. The whole and its parts share it; PortUse in endpoint.h is what each
// has of it for itself.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/order.h"
#include "verbs/events.h"
#include "verbs/handles.h"
#include "verbs/selection.h"

namespace ringcoll::rdma {

/// Any thread: verbs lets several threads make objects of one context and domain at the same time.
class OpenPort {
 public:
  /// `retry_seconds`: how long the device tries before it gives up on a peer. Throws
  /// Error(kTransport).
  OpenPort(verbs::UsablePort port, double retry_seconds);

  /// The port as it was read last.
  verbs::UsablePort port() const;
  /// Reads the port again, since an address may have come or gone since the last queue pair was
  /// made. With a GID that is not the port's any more, a new one would reach nobody. `gid_index`:
  /// RINGCOLL_GID_INDEX.
  void read_again(int gid_index);

  /// Why the device cannot be used any more (an asynchronous event), or "".
  std::string failure() const;
  bool failed() const { return observe(failed_); }

 private:
  void hear(const verbs::Event& event);
  void fail(const std::string& why);

  const double retry_seconds_;
  mutable std::mutex mutex_;
  verbs::UsablePort port_;  // guarded by mutex_, and so is failure_
  std::string failure_;
  std::atomic<bool> failed_{false};

 public:
  const verbs::Context context;
  const verbs::ProtectionDomain domain;

 private:
  verbs::EventThread events_;  // last: it uses the others
};

}  // namespace ringcoll::rdma

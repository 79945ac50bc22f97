// A listening socket that accepts only connections that know the secret. It never blocks: each
// connection is a state machine on the event loop, with a deadline. The number of unproven
// connections is limited, so slow or hostile ones cost a counter and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "connect/auth.h"
#include "net/address.h"
#include "net/event_loop.h"

namespace ringcoll {

class Gate {
 public:
  /// For connections that have not proven themselves yet.
  struct Limits {
    size_t connections = 128;
    Duration deadline = seconds(5);
  };
  struct Refusal {
    Verdict verdict;
    Identity claimed;  // unproven
    Address peer;
  };
  using Accepted = std::function<void(const Identity&, Fd)>;
  using Refused = std::function<void(const Refusal&)>;

  /// Listens, so that peers can connect, but answers none of them before open(). Port 0 takes a
  /// free port. Throws Error(kTransport).
  Gate(const Address& address, EventLoop& loop);
  Gate(const Address& address, EventLoop& loop, Limits limits);
  /// No callback runs once this has returned. Must not be called on the loop's thread.
  ~Gate();

  const Address& address() const;
  /// Begins to accept connections; call it once. The callbacks run on the loop's thread. `accepted`
  /// owns the connection (non-blocking, tuned). `refused` reports connections that sent a valid
  /// hello and a proof, and were not accepted.
  void open(AuthPolicy policy, Accepted accepted, Refused refused);
  /// Number of connections that were closed unproven, without those that the peer closed before it
  /// sent anything.
  uint64_t rejected() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll

// A listening socket that lets in only connections that know the secret. It never blocks: each
// connection is a small state machine on the event loop, with a deadline, and only so many may be
// unproven at a time, so that slow or hostile ones cost a counter and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "bootstrap/auth.h"
#include "net/address.h"
#include "net/event_loop.h"

namespace ringcoll {

class Gate {
 public:
  /// On connections that have not proven themselves yet.
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

  /// Listens, so that peers can connect, but answers nobody before open(). Throws
  /// Error(kTransport). A port of 0 takes a free one.
  Gate(const Address& address, EventLoop& loop);
  Gate(const Address& address, EventLoop& loop, Limits limits);
  /// After this no callback runs. Not on the loop's thread.
  ~Gate();

  const Address& address() const;
  /// Begins to let connections in. The callbacks run on the loop's thread: `accepted` owns the
  /// connection (non-blocking, tuned); `refused` is told of those that said hello properly and
  /// brought a proof, but were not let in. Once.
  void open(AuthPolicy policy, Accepted accepted, Refused refused);
  /// Connections closed because they did not prove themselves, for whatever reason.
  uint64_t rejected() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ringcoll

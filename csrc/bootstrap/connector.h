// Authenticated TCP connections between the ranks of a job. Each rank listens on one socket of one
// interface; of a pair the lower rank connects, the higher accepts. A connection proves that it
// knows the job's secret (both ways, HMAC over fresh nonces) before anything else of it is parsed,
// under a deadline and a limit on connections that have not yet done so. Anything else is closed
// and counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/fd.h"
#include "net/event_loop.h"
#include "transport/transport.h"

namespace ringcoll {

class Connector : public Dialer {
 public:
  /// Listens. `loop` serves the listening socket. Throws Error(kTransport) /
  /// Error(kInvalidArgument) naming interface and cause (an interface that does not exist, the ones
  /// that do).
  Connector(Rank rank, const Config& config, EventLoop& loop);
  ~Connector() override;

  /// "10.0.0.5:41234"; to be published to the peers.
  std::string address() const;
  /// Tells what the exchange brought: everybody's address and the job's secret, before the first
  /// dial().
  void set_peers(std::vector<std::string> addresses, std::string secret);
  /// Throws Error(kTimeout) or Error(kTransport) naming peer, address, channel and cause (refused,
  /// wrong secret, …), or Error(kInvalidArgument) on both ends if their secrets differ. The socket
  /// is non-blocking and tuned. Any thread but the loop's.
  Fd dial(Rank peer, uint32_t channel, Deadline deadline) override;
  /// Ends the waits for peers that are to connect, now and later, with Error(kTransport): the
  /// communicator has failed. Any thread.
  void interrupt();
  /// Connections that were closed because they did not know the secret, spoke something else, or
  /// came too late.
  uint64_t rejected() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 32 random bytes, as hex, for a job without a secret of its own.
std::string random_secret();

}  // namespace ringcoll

// TCP sockets: non-blocking, closed on exec, with waits that have a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "net/address.h"

namespace ringcoll {

/// No delay of small messages; a peer whose host is gone is noticed within half a minute
/// (keepalive, TCP_USER_TIMEOUT). Does nothing to a socket that is not TCP.
void tune(int fd);
/// For a tuned socket whose peer may be stopped, or busy, for as long as it likes with its window
/// full: something else has to notice that its host is gone.
void wait_for_reader(int fd);

/// A host from which nothing has come for so long is taken to be gone. Much shorter, and a link
/// that flaps ends jobs; much longer, and a lost host is noticed only by deadlines.
inline constexpr Duration kHostSilence = std::chrono::seconds(12);
/// For a tuned socket that says when the peer's host is gone, and nothing else: it breaks after
/// kHostSilence while all that was sent is acknowledged. Otherwise unanswered_for() tells.
void watch_host(int fd);
/// While something that was sent is not acknowledged: how long nothing, not even an
/// acknowledgement, has come from the peer. None: all is acknowledged, or it is not TCP.
std::optional<Duration> unanswered_for(int fd);
/// Closing it tells the peer so at once, whatever is not acknowledged: as the kernel does when it
/// gives up a connection.
void reset_on_close(int fd);
void set_nonblocking(int fd);

/// Listens on this address only; port 0 takes a free one. Throws Error(kTransport) naming call and
/// cause.
Fd listen_on(const Address& address);
/// Whether it can be bound on this host, whatever its port.
bool is_own_address(const Address& address);
/// Where a socket is bound, and whom it is connected to. Throw Error(kTransport).
Address local_address(int fd);
Address peer_address(int fd);

/// Connects, tuned. Without success an empty Fd and `*error`: ETIMEDOUT at the deadline,
/// ECONNREFUSED, …
Fd try_connect(const Address& address, Deadline deadline, int* error);
/// The same in two steps, neither of which waits: begins, and when the socket can be written, ends
/// it, with 0 or the error.
Fd begin_connect(const Address& address, int* error);
int end_connect(int fd, const Address& address);

/// All of it, or Error(kTimeout) at the deadline, Error(kTransport) with the cause ("closed by the
/// peer"). `link` says in errors whose socket it is.
void send_all(int fd, const void* data, size_t bytes, Deadline deadline, const std::string& link);
void recv_all(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link);
/// What is there, 0 if nothing is; never waits. Errors as above.
size_t try_recv_some(int fd, void* data, size_t bytes, const std::string& link);
/// What is there, at least one byte; 0 at the end of the stream. Errors as above.
size_t recv_some(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link);

}  // namespace ringcoll

// TCP sockets: non-blocking, closed on exec. Every wait has a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "net/address.h"

namespace ringcoll {

/// Turns off Nagle's algorithm, and has the kernel notice within half a minute that the peer's host
/// is gone (keepalive, TCP_USER_TIMEOUT). Does nothing to a socket that is not TCP.
void tune(int fd);
/// For a tuned socket whose peer may stop reading for any time, with its window full. From then on
/// the kernel does not notice that the peer's host is gone; something else must.
void wait_for_reader(int fd);

/// A host from which nothing has come for this time is taken to be gone. If this is much shorter, a
/// link that flaps ends jobs. If it is much longer, only deadlines notice a lost host.
inline constexpr Duration kHostSilence = std::chrono::seconds(12);
/// For a tuned socket that serves only to notice that the peer's host is gone. If all data that was
/// sent is acknowledged, the socket breaks after kHostSilence. Otherwise ask unanswered_for().
void watch_host(int fd);
/// How long nothing has come from the peer, not even an acknowledgement, while data is
/// unacknowledged. None if all data is acknowledged, or the socket is not TCP.
std::optional<Duration> unanswered_for(int fd);
/// Closing the socket then resets the connection, even with unacknowledged data. The kernel does
/// the same when it gives up a connection.
void reset_on_close(int fd);
void set_nonblocking(int fd);

/// Listens on this address only; port 0 takes a free one. Throws Error(kTransport) naming the call
/// and the cause.
Fd listen_on(const Address& address);
/// Whether this host can bind the address, whatever its port.
bool is_own_address(const Address& address);
/// The addresses of this end and of the peer. Throw Error(kTransport).
Address local_address(int fd);
Address peer_address(int fd);

/// Connects and tunes the socket. On failure returns an empty Fd and sets `*error`: ETIMEDOUT at
/// the deadline, ECONNREFUSED, …
Fd try_connect(const Address& address, Deadline deadline, int* error);
/// try_connect() in two steps that never wait. Call end_connect() once the socket is writable; it
/// returns 0 or the error.
Fd begin_connect(const Address& address, int* error);
int end_connect(int fd, const Address& address);

/// Transfer all bytes. Throw Error(kTimeout) at the deadline, or Error(kTransport) with the cause
/// ("closed by the peer"). `link` names the connection in errors.
void send_all(int fd, const void* data, size_t bytes, Deadline deadline, const std::string& link);
void recv_all(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link);
/// Receives what is there, 0 if nothing is; never waits. Errors as above.
size_t try_recv_some(int fd, void* data, size_t bytes, const std::string& link);
/// Waits for at least one byte and receives what is there; 0 at the end of the stream. Errors as
/// above.
size_t recv_some(int fd, void* data, size_t bytes, Deadline deadline, const std::string& link);

}  // namespace ringcoll

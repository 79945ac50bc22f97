"""What one host measures of another: whether a connection comes about, the round trip, the rate
from there to here, and the largest packet from here to there.

Every rank serves (:class:`Service`); rank 0 says who examines whom. A connection shows the name of
the run, which only the job knows, before anything else of it is heard.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from ringcoll.cluster.wire import Wire
from ringcoll.errors import TransportError

# Longer than any examination: connecting takes 4 s at most for each address, and the waits of what
# is measured then 10 s.
LIMIT_S = 25.0

_CONNECT_S = 2.0
_ANSWER_S = 2.0
_HELLO_BYTES = 4096
_MOST_ADDRESSES = 3
_ROUND_TRIPS, _ROUND_TRIPS_S = 40, 0.5
_WARM_UP_S = 0.04
_MOST_DATA_S = 2.0  # a look that is not heard of any more ends
_CHUNK_BYTES = 1 << 20
MAX_MTU = 65000  # a datagram holds no more: loopback's own is 65536
_LEAST_MTU, _MTU_TRIES, _MTU_ANSWER_S = 576, 3, 0.05
# <linux/in.h>, <linux/in6.h>: "do not fragment", whatever the kernel believes of the path.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 3),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3),
}
_HEADER_BYTES = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}  # IP, UDP


@dataclass(frozen=True)
class Aims:
    """What a look measures, beside whether the other answers."""

    round_trip: bool = False
    path_mtu: bool = False
    rate_s: float = 0.0  # for so long; 0: not at all
    # The flow goes on for so long after that: those that look at the same time began later, and are
    # to have the company that this look had.
    company_s: float = 0.0

    def encode(self) -> dict[str, Any]:
        return {"aims": asdict(self)}

    @staticmethod
    def decode(step: dict[str, Any]) -> Aims:
        return Aims(**step["aims"])


@dataclass
class View:
    """Of one host as another sees it. Values are None where they could not be measured."""

    reached: bool = False
    address: str = ""  # where: the first that answers
    error: str = ""  # why not, or why not at the address before
    round_trip_us: float | None = None
    bytes_per_s: float | None = None  # from there to here; 0: it connects, and nothing large comes
    path_mtu: int | None = None  # from here to there; None: UDP is not answered

    def encode(self) -> dict[str, Any]:
        return asdict(self)

    def better(self, other: View) -> View:
        """The best of two looks: what disturbs a measurement only ever makes it worse."""
        if not (self.reached and other.reached):
            return self if self.reached else other
        trips = [v for v in (self.round_trip_us, other.round_trip_us) if v is not None]
        rates = [v for v in (self.bytes_per_s, other.bytes_per_s) if v is not None]
        sizes = [v for v in (self.path_mtu, other.path_mtu) if v is not None]
        return View(
            True,
            self.address,
            self.error,
            min(trips, default=None),
            max(rates, default=None),
            max(sizes, default=None),
        )


class Service:
    """Answers those who examine this rank, on threads of its own, until it is closed."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._run = ""
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._listener = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self._datagrams = socket.socket(family, socket.SOCK_DGRAM)
        if both:
            self._datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._datagrams.bind(("", 0))
        self.ports = [self._listener.getsockname()[1], self._datagrams.getsockname()[1]]

    def start(self, run: str) -> None:
        """Answers from here on; ``run`` is the name of the run."""
        self._run = run
        for body in (self._accept, self._echo_datagrams):
            threading.Thread(target=body, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, self._datagrams):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TransportError), connection:
            connection.settimeout(_ANSWER_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(connection)
            hello = wire.receive(_HELLO_BYTES)
            if hello.get("run") != self._run:
                return
            wire.send({"rank": self._rank})
            while wire.receive(_HELLO_BYTES).get("want") == "echo":
                wire.send({})
            payload = bytes(_CHUNK_BYTES)
            end = time.monotonic() + _MOST_DATA_S
            while time.monotonic() < end:
                connection.send(payload)

    def _echo_datagrams(self) -> None:
        """Answers with the size of what came, so that the way back may be narrower."""
        with contextlib.suppress(OSError):  # closed
            while True:
                data, sender = self._datagrams.recvfrom(1 << 16)
                if data.startswith(self._run.encode()):
                    answer = data[: len(self._run)] + _size_note(len(data))
                    with contextlib.suppress(OSError):  # a firewall may refuse this one
                        self._datagrams.sendto(answer, sender)


def examine(peer: dict[str, Any], run: str, aims: Aims) -> View:
    """Examines the rank whose report is ``peer``, in less than LIMIT_S."""
    addresses = [each["address"] for each in peer["interfaces"][:_MOST_ADDRESSES]]
    view = View(error="" if addresses else "it has no interface that is up and may be used")
    for address in addresses:
        try:
            wire = _reach(address, peer, run)
        except (OSError, TransportError) as error:
            view.error = view.error or explain(error)
            continue
        view.reached, view.address = True, address
        with contextlib.suppress(OSError, TransportError), contextlib.closing(wire):
            if aims.round_trip:
                view.round_trip_us = _round_trip(wire)
            if aims.path_mtu:
                view.path_mtu = _path_mtu(address, peer["ports"][1], run)
            if aims.rate_s:
                view.bytes_per_s = 0.0
                view.bytes_per_s = _rate(wire, aims)
        break
    return view


def explain(error: Exception) -> str:
    """The cause of a connection that does not come about, in words."""
    if isinstance(error, TimeoutError):
        return "no answer: packets are dropped on the way, by a firewall or for want of a route"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ECONNREFUSED:
        return "refused: a firewall rejects it, or the address is another machine's"
    if number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EINVAL, errno.EACCES):
        return f"{os.strerror(number)}: there is no route to it, or a firewall forbids it"
    return str(error)


def _reach(address: str, peer: dict[str, Any], run: str) -> Wire:
    wire = Wire(socket.create_connection((address, peer["ports"][0]), _CONNECT_S))
    try:
        wire.socket.settimeout(_ANSWER_S)
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.send({"run": run})
        found = wire.receive(_HELLO_BYTES).get("rank")
    except BaseException:
        wire.close()
        raise
    if found != peer["rank"]:
        wire.close()
        raise TransportError(
            f"rank {found} answers in its place: several hosts have the address {address}, which "
            "bridges of containers often do"
        )
    return wire


def _round_trip(wire: Wire) -> float:
    """The shortest of some, in µs: a busy processor lengthens some of them, none shortens one."""
    shortest = float("inf")
    end = time.perf_counter() + _ROUND_TRIPS_S
    for _ in range(_ROUND_TRIPS):
        start = time.perf_counter()
        if start > end:
            break
        wire.send({"want": "echo"})
        wire.receive(_HELLO_BYTES)
        shortest = min(shortest, time.perf_counter() - start)
    return shortest * 1e6


def _rate(wire: Wire, aims: Aims) -> float:
    """Bytes a second from the peer to here, once the flow has begun."""
    wire.send({"want": "data"})
    buffer = bytearray(_CHUNK_BYTES)
    received, start, first, rate = 0, 0.0, 0.0, 0.0
    while True:
        count = wire.socket.recv_into(buffer)
        now = time.perf_counter()
        if not count:
            raise TransportError("the connection ended")
        first = first or now
        if not start and now - first >= _WARM_UP_S:
            start = now
        elif start:
            received += count
            if not rate and now - start >= aims.rate_s:
                rate = received / (now - start)
            if rate and now - start >= aims.rate_s + aims.company_s:
                return rate


def _path_mtu(address: str, port: int, run: str) -> int | None:
    """The largest packet, headers included, that goes from here to there unfragmented."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    headers = _HEADER_BYTES[family]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.settimeout(_MTU_ANSWER_S)
        probe.setsockopt(*_MTU_DISCOVER[family])
        probe.connect((address, port))

        def passes(size: int) -> bool:
            return any(_answered(probe, run, size - headers) for _ in range(_MTU_TRIES))

        largest = _local_mtu(probe)
        if passes(largest):
            return largest
        if not passes(_LEAST_MTU):
            return None
        good, bad = _LEAST_MTU, largest
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if passes(middle) else (good, middle)
        return good


def _answered(probe: socket.socket, run: str, size: int) -> bool:
    end = time.monotonic() + _MTU_ANSWER_S
    try:
        probe.send(run.encode().ljust(size, b"\0"))
        while time.monotonic() < end:
            if probe.recv(256) == run.encode() + _size_note(size):
                return True
    except OSError:  # too large for this host's own interface, or no answer
        pass
    return False


def _local_mtu(probe: socket.socket) -> int:
    """Of the interface that the kernel would use."""
    v4 = probe.family == socket.AF_INET
    level, option = (socket.IPPROTO_IP, 14) if v4 else (socket.IPPROTO_IPV6, 24)  # IP_MTU, IPV6_MTU
    return min(MAX_MTU, probe.getsockopt(level, option))


def _size_note(size: int) -> bytes:
    return struct.pack("!I", size)

"""Measurements of one host by another: whether it can be reached, the round trip, the rate from the
other host to this one, and the largest packet from this host to the other.

Every rank has a :class:`Service` that answers; rank 0 decides which rank examines which. A
connection must begin with the name of the run, which only the job knows.
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

# Longer than any examination: 4 s at most to connect, for each address, and 10 s to measure.
LIMIT_S = 25.0

_CONNECT_S = 2.0
_ANSWER_S = 2.0
_HELLO_BYTES = 4096
_MOST_ADDRESSES = 3
_ROUND_TRIPS, _ROUND_TRIPS_S = 40, 0.5
_WARM_UP_S = 0.04
_MOST_DATA_S = 2.0  # ends the service if the examining rank has gone
_CHUNK_BYTES = 1 << 20
MAX_MTU = 65000  # a datagram holds little more; the MTU of loopback is 65536
_LEAST_MTU, _MTU_TRIES, _MTU_ANSWER_S = 576, 3, 0.05
# IP_MTU_DISCOVER and IP_PMTUDISC_PROBE, and those of IPv6 (<linux/in.h>, <linux/in6.h>): do not
# fragment, and ignore the path MTU that the kernel knows.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 3),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3),
}
_HEADER_BYTES = {socket.AF_INET: 20 + 8, socket.AF_INET6: 40 + 8}  # IP, UDP


@dataclass(frozen=True)
class Aims:
    """What an examination measures, besides whether the other host answers."""

    round_trip: bool = False
    path_mtu: bool = False
    rate_s: float = 0.0  # how long the rate is measured; 0: not at all
    # How long the flow goes on afterwards. Simultaneous examinations may have begun later, and must
    # compete with the same flows as this one.
    company_s: float = 0.0

    def encode(self) -> dict[str, Any]:
        return {"aims": asdict(self)}

    @staticmethod
    def decode(step: dict[str, Any]) -> Aims:
        return Aims(**step["aims"])


@dataclass
class View:
    """What one host has measured of another. Values are None if they could not be measured."""

    reached: bool = False
    address: str = ""  # the first address that answers
    error: str = ""  # why the first address of all does not answer; empty if it does
    round_trip_us: float | None = None
    bytes_per_s: float | None = None  # towards this host; 0: it connects, but no data comes
    path_mtu: int | None = None  # to the other host; None: UDP is not answered

    def encode(self) -> dict[str, Any]:
        return asdict(self)

    def better(self, other: View) -> View:
        """The best values of two views. A disturbance can only make a measurement worse."""
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
    """Answers ranks that examine this one, on threads of its own, until it is closed."""

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
        """Starts to answer. ``run`` is the name of the run."""
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
        """Answers each datagram with its size. The answer is small, so the MTU of the way back does
        not matter."""
        with contextlib.suppress(OSError):  # closed
            while True:
                data, sender = self._datagrams.recvfrom(1 << 16)
                if data.startswith(self._run.encode()):
                    answer = data[: len(self._run)] + _size_note(len(data))
                    with contextlib.suppress(OSError):  # a firewall may refuse this one
                        self._datagrams.sendto(answer, sender)


def examine(peer: dict[str, Any], run: str, aims: Aims) -> View:
    """Examines the rank with the report ``peer``. Takes less than LIMIT_S."""
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
    """The likely cause of a failed connection, in words."""
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
    """The shortest of several round trips, in µs: a busy processor can only lengthen them."""
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
    """The rate from the peer to this host in bytes per second, measured after a warm-up."""
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
    """The largest packet, with headers, that reaches the peer unfragmented. None if UDP gets no
    answer."""
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
    except OSError:  # it is too large for this host's interface, or there is no answer
        pass
    return False


def _local_mtu(probe: socket.socket) -> int:
    """The MTU of the interface that the kernel would use, at most MAX_MTU."""
    v4 = probe.family == socket.AF_INET
    level, option = (socket.IPPROTO_IP, 14) if v4 else (socket.IPPROTO_IPV6, 24)  # IP_MTU, IPV6_MTU
    return min(MAX_MTU, probe.getsockopt(level, option))


def _size_note(size: int) -> bytes:
    return struct.pack("!I", size)

"""Regions of other processes, over each way that a copy takes: memory that is mapped, memory that
the kernel copies, and a link to another host."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy
import pytest
import torch

import ringcoll
from ringcoll.remote import Guest

BYTES = 5_000_003
EXPECTED = numpy.arange(BYTES, dtype="uint64").astype("uint8")

# What the owner's memory is, and on which host it says it is.
WAYS = {"mapped": ("empty", None), "kernel": ("plain", None), "link": ("plain", "elsewhere")}


class Owner:
    def __init__(self, start: Callable[..., Any], way: str, length: int, access: str) -> None:
        kind, host = WAYS[way]
        self.peer = start("owner", kind, length, access, host=host)
        self.url, handle = self.peer.hear().split()
        self.handle = bytes.fromhex(handle)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own(start: Callable[..., Any], way: str) -> Callable[..., Owner]:
    def make(length: int = BYTES, access: str = "writable") -> Owner:
        return Owner(start, way, length, access)

    return make


@pytest.fixture
def guest_of() -> Iterator[Callable[[Owner], Guest]]:
    guests: list[Guest] = []

    def come(owner: Owner) -> Guest:
        guests.append(ringcoll.connect(owner.url, key="key"))
        return guests[-1]

    yield come
    for guest in guests:
        guest.close()


def test_a_guest_reads_and_writes(
    own: Callable[..., Owner], guest_of: Callable[..., Guest]
) -> None:
    owner = own()
    guest = guest_of(owner)
    out = numpy.zeros(BYTES, "uint8")
    assert guest.read(owner.handle, out) is out
    assert (out == EXPECTED).all()
    part = numpy.zeros(100, "uint8")
    guest.read(owner.handle, part, offset=BYTES - 100)
    assert (part == EXPECTED[-100:]).all()
    guest.write(owner.handle, numpy.full(BYTES, 2, "uint8"), notice=2**64 - 1)
    assert owner.peer.ask("notice") == str(2**64 - 1)
    assert owner.peer.ask("sum") == str(2 * BYTES)


def test_many_copies_at_once(own: Callable[..., Owner], guest_of: Callable[..., Guest]) -> None:
    owner = own()
    guest = guest_of(owner)
    outs = [numpy.zeros(1000, "uint8") for _ in range(500)]
    reads = [ringcoll.Read(out, [(owner.handle, 7 * i)]) for i, out in enumerate(outs)]
    guest.transfer(reads)
    for i, out in enumerate(outs):
        assert (out == EXPECTED[7 * i : 7 * i + 1000]).all()
    handle = guest.transfer_async([ringcoll.Write(out, owner.handle, 0) for out in outs[:1]])
    assert handle.wait(20) is None
    assert handle.done()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(1000, dtype=torch.bfloat16),
        torch.arange(1000).to(torch.float8_e4m3fn),
        torch.arange(1000).to(torch.complex64),
        numpy.arange(1000).astype(ml_dtypes.bfloat16),
        numpy.arange(1000).astype("complex128"),
        numpy.arange(1000).astype(">i4"),
        numpy.zeros(10, [("a", "i4"), ("b", "f8")]),
        bytearray(range(200)),
        numpy.float64(3.5).reshape(()),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{getattr(tensor, 'dtype', '')}",
)
def test_every_element_type(tensor: Any, start: Callable[..., Any]) -> None:
    owner = Owner(start, "kernel", 1 << 16, "writable")
    with ringcoll.connect(owner.url, key="key") as guest:
        guest.write(owner.handle, tensor)
        if isinstance(tensor, torch.Tensor):
            got = torch.zeros_like(tensor)
            guest.read(owner.handle, got)
            assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))
        else:
            sent = tensor if isinstance(tensor, bytearray) else tensor.tobytes()
            got = bytearray(len(sent))
            guest.read(owner.handle, got)
            assert got == sent


def test_what_is_no_memory_of_numbers_is_refused(start: Callable[..., Any]) -> None:
    owner = Owner(start, "kernel", 1000, "writable")
    with ringcoll.connect(owner.url, key="key") as guest:
        for wrong in (numpy.array([object()]), "text", numpy.zeros((8, 8))[:, ::2], 5):
            with pytest.raises(ringcoll.InvalidArgument):
                guest.write(owner.handle, wrong)
        with pytest.raises(ringcoll.InvalidArgument, match="read-only"):
            guest.read(owner.handle, bytes(10))


def test_bad_input_is_refused(own: Callable[..., Owner], guest_of: Callable[..., Guest]) -> None:
    owner = own(1000, "readonly")
    guest = guest_of(owner)
    out = numpy.zeros(1001, "uint8")
    with pytest.raises(ringcoll.InvalidArgument, match="not in the region"):
        guest.read(owner.handle, out)
    with pytest.raises(ringcoll.InvalidArgument, match="not in the region"):
        guest.read(owner.handle, out[:1], offset=1000)
    with pytest.raises(ringcoll.Refused, match="writable=True"):
        guest.write(owner.handle, out[:10])
    for damaged in (b"", b"RCH1", owner.handle[:-1], owner.handle + b"\0", b"x" * 2000):
        with pytest.raises(ringcoll.InvalidArgument, match="no handle"):
            guest.read(damaged, out[:10])
    for position in range(len(owner.handle)):
        damaged = bytearray(owner.handle)
        damaged[position] ^= 0x40
        with pytest.raises(ringcoll.InvalidArgument, match="no handle"):
            guest.read(bytes(damaged), out[:10])


def test_a_closed_region_is_gone(own: Callable[..., Owner], guest_of: Callable[..., Guest]) -> None:
    owner = own()
    guest = guest_of(owner)
    out = numpy.zeros(BYTES, "uint8")
    guest.read(owner.handle, out)
    assert owner.peer.ask("close") == "closed"
    with pytest.raises(ringcoll.Gone):
        guest.read(owner.handle, out)
    with pytest.raises(ringcoll.Gone):
        guest.write(owner.handle, out)


def test_a_wrong_key_opens_nothing(own: Callable[..., Owner]) -> None:
    owner = own()
    with pytest.raises(ringcoll.Refused, match="key is wrong"):
        ringcoll.connect(owner.url, key="another")
    with pytest.raises(ringcoll.Refused, match="under this name"):
        ringcoll.connect(owner.url.replace("/test", "/other"), key="key")


def test_an_owner_that_is_killed(own: Callable[..., Owner], guest_of: Callable[..., Guest]) -> None:
    owner = own()
    guest = guest_of(owner)
    out = numpy.zeros(BYTES, "uint8")
    guest.read(owner.handle, out)
    owner.peer.signal(signal.SIGKILL)
    owner.peer.process.wait()
    begin = time.monotonic()
    for _ in range(3):
        with pytest.raises(ringcoll.PeerLost):
            guest.read(owner.handle, out)
        with pytest.raises(ringcoll.PeerLost):
            guest.write(owner.handle, out)
    assert time.monotonic() - begin < 10


def test_an_owner_that_is_killed_in_the_middle(
    own: Callable[..., Owner], guest_of: Callable[..., Guest]
) -> None:
    """Reads go on until it dies, and each of them gives the right bytes or an error."""
    owner = own(64 << 20)
    guest = guest_of(owner)
    out = numpy.zeros(64 << 20, "uint8")
    killer = threading.Timer(0.15, lambda: owner.peer.signal(signal.SIGKILL))
    killer.start()
    reads = 0
    with pytest.raises((ringcoll.PeerLost, ringcoll.Gone)):
        while True:
            out[::4096] = 0
            guest.read(owner.handle, out)
            assert out[4097] == 1
            reads += 1
    killer.join()
    assert reads > 0


def test_a_read_goes_on_from_another_holder(
    own: Callable[..., Owner], guest_of: Callable[..., Guest]
) -> None:
    first, second = own(), own()
    guest = guest_of(first)
    out = numpy.zeros(BYTES, "uint8")
    for stop in (signal.SIGSTOP, signal.SIGKILL):
        first.peer.signal(stop)
        out[:] = 0
        begin = time.monotonic()
        guest.transfer([ringcoll.Read(out, [first.handle, second.handle])])
        assert (out == EXPECTED).all()
        assert time.monotonic() - begin < 10


def test_a_stopped_owner_does_not_stop_reads_of_this_host(
    own: Callable[..., Owner], guest_of: Callable[..., Guest], way: str
) -> None:
    owner = own()
    guest = guest_of(owner)
    out = numpy.zeros(BYTES, "uint8")
    owner.peer.signal(signal.SIGSTOP)
    if way == "link":
        with pytest.raises(ringcoll.Timeout):
            guest.read(owner.handle, out, timeout=1.5)
        owner.peer.signal(signal.SIGCONT)
    guest.read(owner.handle, out)
    assert (out == EXPECTED).all()


def test_a_forked_child_is_refused(
    own: Callable[..., Owner], guest_of: Callable[..., Guest]
) -> None:
    owner = own()
    guest = guest_of(owner)
    out = numpy.zeros(10, "uint8")
    child = os.fork()
    if child == 0:
        try:
            guest.read(owner.handle, out)
        except ringcoll.InvalidArgument as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    guest.read(owner.handle, out)


def test_guests_that_come_and_go_leave_nothing(own: Callable[..., Owner]) -> None:
    owner = own()
    out = numpy.zeros(BYTES, "uint8")

    def visit() -> None:
        with ringcoll.connect(owner.url, key="key") as guest:
            guest.read(owner.handle, out)

    visit()
    time.sleep(0.5)
    here, there = len(list(Path("/proc/self/fd").iterdir())), owner.peer.ask("descriptors")
    for _ in range(20):
        visit()
    end = time.monotonic() + 10
    while time.monotonic() < end and owner.peer.ask("descriptors") != there:
        time.sleep(0.1)
    assert owner.peer.ask("descriptors") == there
    assert len(list(Path("/proc/self/fd").iterdir())) == here

"""Plays the messages of an exchange on one rank, and checks what its receives have got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ringcoll
from support.soak import data
from support.soak.buffers import Buffer, Wrong, difference
from support.soak.oracle import same
from support.soak.script import ANY, Exchange, Message, Receive

_BYTE = np.dtype("u1")
# A request in flight, and what is to be done with its result.
Request = tuple[ringcoll.Handle[Any], Callable[[Any], None]]


class Inbox:
    """What one rank receives in an exchange. Checked when the last receive has ended."""

    def __init__(self, step: Exchange, comm: ringcoll.Communicator, run: int) -> None:
        self._step = step
        self._run = run
        self._where = f"exchange {step.number} on rank {comm.rank} of {comm.name!r}"
        self.receives = [each for each in step.receives if each.target == comm.rank]
        self._buffers = [Buffer(each.room, _BYTE) for each in self.receives]
        self._got: dict[int, ringcoll.Received] = {}

    def buffer(self, at: int) -> Any:
        return self._buffers[at].tensor

    def taker(self, at: int) -> Callable[[ringcoll.Received], None]:
        def take(received: ringcoll.Received) -> None:
            self._got[at] = received
            if len(self._got) == len(self.receives):
                self._check()

        return take

    def _check(self) -> None:
        """Messages of one sender that receives fit come in the order in which they were sent."""
        taken: dict[tuple[tuple[int, ...], int], int] = {}
        for at, receive in enumerate(self.receives):
            got = self._got[at]
            possible = [n for n in receive.fits if self._step.messages[n].source == got.source]
            nth = taken.get((receive.fits, got.source), 0)
            taken[receive.fits, got.source] = nth + 1
            if nth >= len(possible):
                raise Wrong(f"{self._where}: {receive} got {got}, which nobody has sent it")
            self._check_one(at, got, self._step.messages[possible[nth]])

    def _check_one(self, at: int, got: ringcoll.Received, message: Message) -> None:
        what = f"{self._where}: {self.receives[at]}"
        if (got.tag, got.bytes, got.elements) != (message.tag, message.size, message.size):
            raise Wrong(f"{what} got {got} instead of {message}")
        buffer = self._buffers[at]
        wanted = sent_bytes(self._step, message, self._run)
        if not same(buffer.tensor[: got.bytes], wanted):
            raise Wrong(f"{what}, {message}: {difference(buffer.tensor[: got.bytes], wanted)}")
        buffer.check_untouched(got.bytes, what)
        buffer.check(what)
        buffer.spoil()


def sent_bytes(step: Exchange, message: Message, run: int) -> data.Array:
    return data.payload((step.number, run, message.number), message.size)


def play(step: Exchange, comm: ringcoll.Communicator, run: int) -> list[Request]:
    """What is in flight when the rank has done its part of an exchange but for waiting."""
    inbox = Inbox(step, comm, run)
    if comm.rank in step.early:
        return _receive(inbox, comm) + _send(step, comm, run)
    return _send(step, comm, run) + _receive(inbox, comm)


def _send(step: Exchange, comm: ringcoll.Communicator, run: int) -> list[Request]:
    requests: list[Request] = []
    for message in step.messages:
        if message.source != comm.rank:
            continue
        buffer = Buffer.of(sent_bytes(step, message, run))

        def spoil(_: object, buffer: Buffer = buffer) -> None:
            buffer.spoil()

        if message.blocking:
            comm.send(buffer.tensor, message.target, message.tag)
            buffer.spoil()
        else:
            requests.append((comm.isend(buffer.tensor, message.target, message.tag), spoil))
    return requests


def _receive(inbox: Inbox, comm: ringcoll.Communicator) -> list[Request]:
    requests: list[Request] = []
    for at, receive in enumerate(inbox.receives):
        if receive.too_short != ANY:
            _refuse(comm, receive)
        if receive.blocking:
            inbox.taker(at)(comm.recv(inbox.buffer(at), receive.source, receive.tag))
        else:
            handle = comm.irecv(inbox.buffer(at), receive.source, receive.tag)
            requests.append((handle, inbox.taker(at)))
    return requests


def _refuse(comm: ringcoll.Communicator, receive: Receive) -> None:
    """A message that is too long says how long it is, and stays."""
    buffer = Buffer(receive.too_short, _BYTE)
    try:
        comm.recv(buffer.tensor, receive.source, receive.tag)
    except ringcoll.MessageTooLong as error:
        if error.bytes <= receive.too_short or error.bytes > receive.room:
            raise Wrong(f"{receive}: MessageTooLong says {error.bytes} bytes") from error
        buffer.check_untouched(0, f"{receive}: too long a message")
        buffer.check(f"{receive}: too long a message")
    else:
        raise Wrong(f"{receive}: a message that is too long was received")

"""Executes a script on one rank."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import ringcoll
from support.soak import mail, script
from support.soak.buffers import Buffer, Wrong
from support.soak.children import Children
from support.soak.collectives import Made
from support.soak.script import Script, Step
from support.soak.usage import Usage, usage

# What ranks may be told when one of them has died: the loss, or that others have left.
LOSSES = (ringcoll.PeerLost, ringcoll.Aborted)


@dataclass
class Flight:
    """A request, and what its result is handed to."""

    handle: ringcoll.Handle[Any]
    take: Callable[[Any], None]


class Player:
    """`stage` is told the number of each step before it is played."""

    def __init__(
        self,
        story: Script,
        rank: int,
        world: ringcoll.Communicator,
        stage: Callable[[int], None],
    ) -> None:
        self._script = story
        self._rank = rank
        self._stage = stage
        self._comms = {script.WORLD: world}
        self._living = tuple(range(story.plan.size))
        self._run = 0  # which lap: tensors differ
        self._flights: list[Flight] = []
        self._called: list[tuple[int, int]] = []  # done callbacks: communicator, step
        # Ranks that die before the world is renewed: one that is ahead may be dead already.
        self._dying = story.dying(0)
        self._broken = False
        self._children = Children()
        self._timers: list[threading.Timer] = []
        self._random = Random(f"{story.plan.seed}/{rank}")
        self.usages: list[Usage] = []

    @property
    def world(self) -> ringcoll.Communicator:
        return self._comms[script.WORLD]

    def play(self) -> None:
        """All laps, in the end of each of which nothing is in flight and all groups are closed."""
        for lap in range(self._script.plan.laps):
            self._run = lap
            for at, step in enumerate(self._script.steps):
                self._stage(lap * len(self._script.steps) + at)
                self._play(step)
                if isinstance(step, script.Renew):
                    self._dying = self._script.dying(at + 1)
            self._children.reap()
            for timer in self._timers:
                timer.join()
            self.world.barrier()
            self.usages.append(usage())
            self.world.barrier()  # ranks that are threads measure the same process

    def _play(self, step: Step) -> None:
        if isinstance(step, script.Renew):
            self._renew(step)
            return
        if self._broken and not isinstance(step, script.Die):
            return
        try:
            _PLAYS[type(step)](self, step)
        except LOSSES as error:
            if not self._dying:
                raise
            self._check_blame(step, error)
            self._broken = True

    def _check_blame(self, step: Step, error: ringcoll.Error) -> None:
        """In the world nobody leaves, so that one who has died is to blame."""
        if getattr(step, "comm", getattr(step, "parent", None)) != script.WORLD:
            return
        blamed = self._living[error.rank] if 0 <= error.rank < len(self._living) else None
        if blamed not in self._dying:
            raise Wrong(f"ranks {self._dying} have died, and {blamed} is blamed") from error

    # Steps.

    def _call(self, step: script.Call) -> None:
        comm = self._comms.get(step.comm)
        if comm is None:
            return
        made = Made(step, comm, self._run)
        if not step.started:
            made.run()
            return
        handle = made.start()
        if step.callback:
            handle.add_done_callback(lambda _: self._called.append((step.comm, step.number)))
            take = self._checks_callback(step, made.check)
        else:
            take = made.check
        self._flights.append(Flight(handle, take))

    def _checks_callback(
        self, step: script.Call, check: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        def take(result: Any) -> None:
            mine = [number for comm, number in self._called if comm == step.comm]
            if mine.count(step.number) != self._run + 1 and not self._dying:
                raise Wrong(f"{step}: its callback was called {mine.count(step.number)} times")
            check(result)

        return take

    def _wait(self, step: script.Wait) -> None:
        """In any order; some are asked or waited for in vain first."""
        if self._rank not in step.ranks:
            return
        rng = Random(f"{self._script.plan.seed}/{step.number}/{self._rank}")
        rng.shuffle(self._flights)
        count = math.ceil(step.share * len(self._flights))
        for _ in range(count):
            flight = self._flights.pop()
            way = rng.random()
            if way < 0.2:
                flight.handle.done()
            elif way < 0.4:
                try:
                    flight.handle.wait(timeout=rng.choice([0, 1e-4, 0.01]))
                except ringcoll.Timeout:
                    raise
                except TimeoutError:
                    pass
            flight.take(flight.handle.wait())
            if not flight.handle.done():
                raise Wrong("a handle that was waited for is not done")

    def _split(self, step: script.Split) -> None:
        parent = self._comms.get(step.parent)
        if parent is None:
            return
        mine = [(comm, ranks) for comm, ranks in step.groups if parent.rank in ranks]
        comm, ranks = mine[0] if mine else (script.WORLD, ())
        name = f"c{comm}.{self._run}"
        if step.by_color:
            color = comm if mine else None
            key = ranks.index(parent.rank) if mine else 0
            made = parent.split(color=color, key=key, name=name)
        else:
            made = parent.split(ranks, name=name)
        if made is None:
            if mine:
                raise Wrong(f"{step}: rank {parent.rank} has got no communicator")
            return
        if not mine or (made.size, made.rank) != (len(ranks), ranks.index(parent.rank)):
            raise Wrong(f"{step}: rank {parent.rank} is {made.rank} of {made.size}")
        self._comms[comm] = made

    def _regroup(self, step: script.Regroup) -> None:
        parent = self._comms.get(step.parent)
        if parent is None:
            return
        made = parent.shrink()
        self._comms[step.child] = made
        if (made.size, made.rank) != (parent.size, parent.rank):
            raise Wrong(f"{step}: shrink() of whom nobody has left: {parent}, {made}")

    def _close(self, step: script.Close) -> None:
        if step.rank == self._rank:
            self._comms.pop(step.comm).close()

    def _exchange(self, step: script.Exchange) -> None:
        comm = self._comms.get(step.comm)
        if comm is None:
            return
        requests = mail.play(step, comm, self._run)
        if step.kept:
            self._flights += [Flight(handle, take) for handle, take in requests]
            return
        self._random.shuffle(requests)
        for handle, take in requests:
            take(handle.wait())

    def _starve(self, step: script.Starve) -> None:
        comm = self._comms.get(step.comm)
        if comm is None or comm.rank != step.rank:
            return
        buffer = Buffer(100, np.dtype("u1"))
        try:
            comm.recv(buffer.tensor, ringcoll.ANY_SOURCE, step.tag, timeout=0.02)
        except ringcoll.Timeout:
            buffer.check_untouched(0, f"{step}")
        else:
            raise Wrong(f"{step}: something was received that nobody has sent")

    def _threads(self, step: script.Threads) -> None:
        errors: list[BaseException] = []

        def run(steps: tuple[Step, ...]) -> None:
            try:
                for inner in steps:
                    _PLAYS[type(inner)](self, inner)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=(steps,))
            for comm, steps in step.blocks
            if comm in self._comms
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            if not isinstance(error, LOSSES):
                raise error
        if errors:
            raise errors[0]

    def _pause(self, step: script.Pause) -> None:
        if step.rank != self._rank:
            return
        if not step.stopped:
            time.sleep(step.for_ms / 1e3)
        else:  # whoever has started the ranks has this one go on
            self._later(step.after_ms, signal.SIGSTOP)

    def _fork(self, step: script.Fork) -> None:
        if step.rank == self._rank:
            self._children.fork(step, self.world)

    def _stats(self, step: script.Stats) -> None:
        if step.rank == self._rank and step.comm in self._comms:
            found = self._comms[step.comm].stats()
            if found["size"] != self._comms[step.comm].size:
                raise Wrong(f"{step}: {found}")

    def _die(self, step: script.Die) -> None:
        if step.rank == self._rank:
            self._later(step.after_ms, signal.SIGKILL)

    def _later(self, milliseconds: float, number: signal.Signals) -> None:
        if not milliseconds:
            os.kill(os.getpid(), number)
            return
        timer = threading.Timer(milliseconds / 1e3, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _renew(self, step: script.Renew) -> None:
        """Those who are left go on together. Who is to die does now, while the others shrink."""
        if self._rank in self._dying:
            self._later(self._random.choice([0.0, 0.5, 3.0]), signal.SIGKILL)
        groups = [comm for comm in self._comms if comm != script.WORLD]
        self._random.shuffle(groups)
        for comm in groups:
            self._comms.pop(comm).close()
        old = self.world
        self._end_flights()
        now = old.shrink()
        while now.size > len(step.ranks) or self._rank in self._dying:
            try:
                now.barrier()
            except LOSSES:
                following = now.shrink()
                now.close()
                now = following
        if (now.size, now.rank) != (len(step.ranks), step.ranks.index(self._rank)):
            raise Wrong(f"{step}: rank {self._rank} is {now.rank} of {now.size} after shrink()")
        old.close()
        self._comms[script.WORLD] = now
        self._living = step.ranks
        self._broken = False

    def _end_flights(self) -> None:
        """What was in flight when ranks died ends, and is right if it ends well."""
        flights, self._flights = self._flights, []
        for flight in flights:
            try:
                result = flight.handle.wait()
            except LOSSES:
                continue
            flight.take(result)


_PLAYS: dict[type[Step], Callable[[Player, Any], None]] = {
    script.Call: Player._call,
    script.Wait: Player._wait,
    script.Split: Player._split,
    script.Regroup: Player._regroup,
    script.Close: Player._close,
    script.Exchange: Player._exchange,
    script.Starve: Player._starve,
    script.Threads: Player._threads,
    script.Pause: Player._pause,
    script.Fork: Player._fork,
    script.Stats: Player._stats,
    script.Die: Player._die,
}

"""Messages of stores to agents that cannot be reached."""

from __future__ import annotations

import threading
import time

from fake_agent import FakeNetwork
from stores import wait_until

from ringcoll.weights.catalog import Json
from ringcoll.weights.endpoint import Endpoint


class Handler:
    """A store that notes what it is told."""

    name = "w"

    def __init__(self) -> None:
        self.heard: list[Json] = []
        self.downs = 0
        self.down = threading.Event()

    def on_message(self, source: str, message: Json) -> None:
        self.heard.append(message)

    def on_up(self, agent: str) -> None: ...

    def on_down(self, agent: str, ended: bool) -> None:
        self.downs += 1
        self.down.set()

    def on_tick(self) -> None: ...

    def on_closed(self) -> None: ...


def test_each_message_arrives_or_its_loss_is_told() -> None:
    """One that is sent right after an attempt to connect has failed, too: who waits for an answer
    would wait until its deadline."""
    network = FakeNetwork(silence=0.3)
    one, other = network.agent("a"), network.agent("b")
    address = [other.admit("w", "key")]
    one.admit("w", "key")
    here, there = Endpoint.of(one), Endpoint.of(other)
    mine, theirs = Handler(), Handler()
    me, peer = here.new_id(), there.new_id()
    here.attach(me, mine)
    there.attach(peer, theirs)
    network.cut("a", "b")
    here.send(me, peer, {"k": 1}, address)
    assert mine.down.wait(10)
    here.send(me, peer, {"k": 2}, address)
    wait_until(lambda: mine.downs == 2)
    here.send(me, peer, {"k": 3}, address)
    network.heal()
    wait_until(lambda: theirs.heard)
    time.sleep(0.1)
    assert theirs.heard == [{"k": 3}]
    here.detach(me)
    there.detach(peer)
    network.close()

"""Messages of stores to agents that cannot be reached."""

from __future__ import annotations

import json
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


class _AgentOfThreads:
    """An agent that sends its hello slowly, and notes what it sends."""

    def __init__(self) -> None:
        self.sent: list[Json] = []
        self.meanwhile: threading.Thread | None = None

    def send(self, connection: int, payload: bytes) -> None:
        message = json.loads(payload)
        if "hello" in message and self.meanwhile is not None:
            self.meanwhile.start()
            self.meanwhile.join(0.3)
        self.sent.append(message)


def test_nothing_is_sent_to_who_has_connected_before_the_hello(monkeypatch) -> None:
    """The peer does not know yet who sends, and would drop it: who waits for an answer would wait
    until its deadline."""
    agent = _AgentOfThreads()
    monkeypatch.setattr("ringcoll.weights.agents.name_of", lambda agent: "here")
    endpoint = Endpoint(agent)
    sent: list[bool] = []
    agent.meanwhile = threading.Thread(
        target=lambda: sent.append(endpoint.send("here.1", "peer.1", {"k": 1}, ["address"]))
    )
    monkeypatch.setattr(endpoint, "_start_dial", lambda agent, peer: None)
    endpoint._take(("message", 7, b'{"hello": "peer", "v": 1}'))
    agent.meanwhile.join(10)
    assert sent == [True]
    assert [sorted(message) for message in agent.sent] == [["hello", "v"], ["d", "m", "s"]]

"""What a server is told, given what the catalog says: the order matters for what is acknowledged.

The control and the server are stubs, and threads run what they are given at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ringcoll.errors import InvalidArgument
from ringcoll.tables import lines, native, serving
from ringcoll.tables.serving import Serving


class _AtOnce:
    """In place of a worker."""

    def __init__(self, name: str) -> None:
        pass

    def submit(self, function: Callable[[], None]) -> None:
        function()

    def stop(self, timeout: float) -> None:
        pass


class _Server:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails: Exception | None = None
        self.found: list[tuple[Any, ...]] = []
        self.until = 0.0

    def host(self, uid: str, spec: str, shard: int, shards: int, workers: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.calls.append(("host", shard))

    def unhost(self, uid: str, shard: int) -> None:
        self.calls.append(("unhost", shard))

    def lead(self, uid: str, shard: int, epoch: int, backups: Any) -> None:
        self.calls.append(("lead", shard, epoch, list(backups)))

    def follow(self, uid: str, shard: int, epoch: int) -> None:
        self.calls.append(("follow", shard, epoch))

    def serve_until(self, monotonic_s: float) -> None:
        self.until = monotonic_s

    def offer(self, server: int) -> bytes:
        return b"offer"

    def complete(self, server: int, answer: bytes) -> None:
        self.calls.append(("line", server))

    def part(self, server: int) -> None:
        self.calls.append(("part", server))

    def events(self) -> str:
        found, self.found = self.found, []
        return json.dumps(found)

    def drop(self, client: int) -> None:
        self.calls.append(("drop", client))

    def leave(self, client: int) -> None:
        self.calls.append(("leave", client))

    def stats(self) -> str:
        return json.dumps({"shards": []})

    def close(self) -> None:
        self.calls.append(("close",))


class Scene:
    """A holder "me" with one shard, in a catalog that the test changes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.server, self.sent, self.unreached = _Server(), list[Any](), set[str]()
        patch.setattr(serving, "Worker", _AtOnce)
        patch.setattr(native, "make_server", lambda agent: self.server)
        patch.setattr(lines, "_AGAIN_S", 0.0)
        patch.setattr(serving, "_APART_S", 0.0)
        self.view: dict[str, Any] = {}
        replica = SimpleNamespace(
            tables=lambda index: self.view,
            committed=0,
            index=0,
            serves_until=100.0,
            leader="leader",
            catalog=SimpleNamespace(members={"me": {}, "b": {}, "c": {}}, away={}),
        )
        self.node = SimpleNamespace(replica=replica, shards={})
        control: Any = SimpleNamespace(
            me="me",
            node=self.node,
            lock=contextlib.nullcontext(),
            session=SimpleNamespace(ask=self._ask),
            send=lambda to, message: self.sent.append((to, message)),
        )
        self.serving = Serving(control, None, 5, lambda *_: None)

    def _ask(self, node: str, message: Any, timeout: float) -> Any:
        return None if node in self.unreached else {"answer": ""}

    def set(self, epoch: int, holders: list[str], filling: str | None = None) -> list[Any]:
        """The catalog changes. Returns what the server was told."""
        before = self.view["t"]["shards"][0] if self.view else {"holders": []}
        since = before["since"] if before["holders"][:1] == holders[:1] else epoch
        shard = {"epoch": epoch, "since": since, "holders": holders, "filling": filling, "away": []}
        record = {
            "uid": "u",
            "spec": {},
            "from": None,
            "workers": [[8, "me"], [9, "b"]],
            "shards": [shard],
        }
        self.view = {"t": record}
        return self.update()

    def update(self) -> list[Any]:
        self.serving.update()
        return self.calls()

    def calls(self) -> list[Any]:
        calls, self.server.calls = self.server.calls, []
        return calls


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_shard_is_hosted_led_followed_and_given_up(scene: Scene) -> None:
    assert scene.set(1, ["me", "b"]) == [("host", 0), ("line", 1), ("lead", 0, 1, [1])]
    assert scene.node.shards == {"u": {"0": 1}}
    assert scene.update() == [], "nothing has changed"
    assert scene.set(2, ["b", "me"]) == [("follow", 0, 2)]
    assert scene.set(3, ["b"]) == [("unhost", 0)]
    assert scene.node.shards == {}


def test_a_copy_from_before_stays_until_the_new_one_takes_its_place(scene: Scene) -> None:
    scene.set(1, ["me"])
    assert scene.set(3, ["b"], "me") == [("follow", 0, 3)], "which may be there already"
    assert scene.node.shards == {}, "what is being filled does not count"
    assert scene.set(4, ["b", "me"]) == [], "b leads it since 3"
    assert scene.node.shards == {"u": {"0": 4}}


def test_nothing_is_answered_without_a_backup(scene: Scene) -> None:
    scene.unreached.add("b")
    assert scene.set(1, ["me", "b"]) == [("host", 0)]
    scene.update()
    message = {"k": "apart", "uid": "u", "shard": 0, "epoch": 1, "holder": "b"}
    assert ("leader", message) in scene.sent
    assert scene.set(2, ["me"]) == [("lead", 0, 2, [])]


def test_a_holder_to_be_filled_may_come_later(scene: Scene) -> None:
    scene.unreached.add("b")
    assert scene.set(2, ["me"], "b") == [("host", 0), ("lead", 0, 2, [])]
    scene.unreached.clear()
    assert scene.update() == [("line", 1), ("lead", 0, 2, [1])]


def test_a_holder_that_may_be_filled_counts_until_the_epoch_changes(scene: Scene) -> None:
    """The leader may make it a backup at any moment: nothing may be answered without it."""
    scene.set(2, ["me"], "b")
    scene.server.found = [("installed", "u", 0, 2, 1)]
    scene.serving.tick()
    assert [message["k"] for _, message in scene.sent] == ["filled"]
    scene.unreached.add("b")
    scene.serving.down("b", False)
    scene.calls()
    assert scene.update() == [], "it is not led without the holder"
    scene.unreached.clear()
    assert scene.update() == [("line", 1), ("lead", 0, 2, [1])]
    scene.unreached.add("b")
    scene.serving.down("b", True)
    scene.calls()
    assert scene.set(3, ["me"]) == [("lead", 0, 3, [])]


def test_what_was_filled_is_told_until_the_leader_knows(scene: Scene) -> None:
    scene.set(2, ["me"], "b")
    scene.server.found = [("installed", "u", 0, 2, 1)]
    scene.serving.tick()
    scene.serving._report()
    scene.serving._report()
    assert [message["k"] for _, message in scene.sent] == ["filled"] * 3
    scene.set(3, ["me", "b"])
    scene.serving._report()
    assert len(scene.sent) == 3


def test_a_holder_that_cannot_host_says_so(scene: Scene) -> None:
    for error in (MemoryError("none"), InvalidArgument("bad")):
        scene.server.fails = error
        assert scene.set(1, ["b", "me"]) == []
        message = {"k": "apart", "uid": "u", "shard": 0, "epoch": 1, "holder": "me"}
        assert scene.sent.pop() == ("leader", message)
    scene.server.fails = None
    assert scene.update() == [("host", 0), ("follow", 0, 1)]


def test_a_worker_whose_holder_has_left_is_dropped(scene: Scene) -> None:
    scene.set(1, ["me"])
    del scene.node.replica.catalog.members["b"]
    scene.node.replica.catalog.away["b"] = {}
    assert scene.update() == [], "it may come back"
    scene.node.replica.catalog.away.clear()
    assert scene.update() == [("drop", 9)]
    assert scene.update() == []

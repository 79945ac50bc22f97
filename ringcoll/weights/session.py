"""The client's side: requests that find the leader, and go on when it is lost.

A request is sent to the holder that is thought to lead. If that one is lost or names another, the
request is sent again, until its deadline. So every request may arrive twice, and the leader treats
all of them so that this does no harm.

A client may be cut off from a leader that the other holders hear. It tells them so, and they answer
what only reads (node.py). Commits and leases need the leader, and raise Timeout.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from ringcoll.errors import Aborted, Error, Timeout
from ringcoll.log import log
from ringcoll.weights.catalog import Json
from ringcoll.weights.directory import error_of

if TYPE_CHECKING:
    from ringcoll.weights.control import Control

_PAUSE_S = 0.03  # between attempts while nobody leads
_LOST_S = 5.0  # so long others are asked instead of a holder that did not answer
_AGAIN_S = 0.5  # if there are no others
_WAIT_S = 0.01  # between attempts while the answer is not there yet
_UNHEARD_S = 1.0  # longer than holders take to notice that a leader is lost
_LOST: Json = {"lost": True}


class _Attempt:
    """A request that was sent to one holder."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.event = threading.Event()
        self.answer: Json = {}

    def end(self, answer: Json) -> None:
        self.answer = answer
        self.event.set()


class Session:
    """Requests, leases and the watch of one store in one process. Any thread may use it."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._control: Control | None = None
        self._lock = threading.Condition()
        self._numbers = itertools.count(1)
        self._attempts: dict[int, _Attempt] = {}
        self._known: dict[str, Json] = {}  # holders, and where they are
        self._lost: dict[str, float] = {}  # holders that do not answer, since when
        self._leader: str | None = None
        self._served: str | None = None  # who answered as the leader last
        self._changes = 0  # how often the leader was lost or another one answered
        # A leader that others name and that does not answer this client, and since when.
        self._unheard: tuple[str, float] | None = None
        self._leases: dict[str, int] = {}
        self._watching = 0
        self._newest = 0
        self._stray = False  # the leader is lost, and leases or a watch have to be told the next
        self._keeper: threading.Thread | None = None
        self._found: str | None = None
        self._closed = False

    def bind(self, control: Control) -> None:
        """Tells the session by whom it sends."""
        self._control = control

    # Requests.

    def request(self, body: Json, timeout: float, wait: bool = True) -> Json:
        """Sends a request to the leader, and returns the answer. Raises the error that it has, and
        Timeout."""
        deadline = time.monotonic() + timeout
        asked: set[str] = set()
        while True:
            target = self._choose(asked)
            if target is None:
                self._pause(deadline, _PAUSE_S, body)
                asked.clear()
                continue
            answer = self._attempt(target, body, deadline)
            if answer is _LOST:
                asked.add(target)
            elif "moved" in answer:
                asked.add(target)
                self._move(answer)
            elif answer.get("wait"):
                self._pause(deadline, _WAIT_S, body)
            else:
                error = error_of(answer)
                if error is not None:
                    raise error
                self._note_server(target, answer)
                return answer

    def ask(self, holder: str, body: Json, timeout: float) -> Json | None:
        """Asks a certain holder. None if it does not answer."""
        try:
            answer = self._attempt(holder, body, time.monotonic() + timeout)
        except Timeout:
            return None
        return None if answer is _LOST or "moved" in answer or error_of(answer) else answer

    def post(self, body: Json) -> None:
        """Sends a request to the leader whose answer does not matter."""
        with self._lock:
            target, number = self._leader, next(self._numbers)
        if target is not None:
            self._send(target, body | {"r": number})

    def _attempt(self, target: str, body: Json, deadline: float) -> Json:
        attempt = _Attempt(target)
        with self._lock:
            if self._closed:
                raise Aborted("the store is closed")
            number = next(self._numbers)
            self._attempts[number] = attempt
            if self._unheard is not None and time.monotonic() - self._unheard[1] > _UNHEARD_S:
                body = body | {"unheard": self._unheard[0]}
        try:
            if not self._send(target, body | {"r": number}):
                return _LOST
            if not attempt.event.wait(max(0.0, deadline - time.monotonic())):
                raise self._timeout(body, target)
            return attempt.answer
        finally:
            with self._lock:
                self._attempts.pop(number, None)

    def _send(self, target: str, message: Json) -> bool:
        assert self._control is not None
        return self._control.send(target, message)

    def _choose(self, asked: set[str]) -> str | None:
        """The leader as far as known, else a holder that was not asked yet, this one first. Those
        that did not answer lately come last: connecting with them may take seconds."""
        with self._lock:
            if self._leader is not None and self._leader not in asked:
                return self._leader
        assert self._control is not None
        holders = self._control.holders()
        now, lost = time.monotonic(), self.lost()
        others = [holder for holder in holders if holder not in lost]
        if not others:  # nobody else is known
            others = [h for h in holders if now - self._lost.get(h, 0.0) >= _AGAIN_S]
        return next((holder for holder in others if holder not in asked), None)

    def _move(self, answer: Json) -> None:
        leader, now = answer["moved"], time.monotonic()
        with self._lock:
            if leader is None:
                self._unheard = None
            elif now - self._lost.get(leader, -_LOST_S) < _LOST_S:
                # The other holder has not noticed yet, or it hears the leader.
                if self._unheard is None or self._unheard[0] != leader:
                    self._unheard = (leader, now)
                leader = None
            self._leader = leader
            if leader is not None and answer.get("info"):
                self._known[leader] = answer["info"]

    def _note_server(self, target: str, answer: Json) -> None:
        """The target has answered. If it leads, requests go there from now on."""
        if answer.get("leased") is False or answer.get("leader", target) is None:
            return
        with self._lock:
            self._leader, self._unheard = target, None
            if self._served not in (None, target):
                self._changes += 1
                self._stray = self._stray or bool(self._leases or self._watching)
            self._served = target
            self._wake_keeper()

    def _pause(self, deadline: float, seconds: float, body: Json) -> None:
        if time.monotonic() + seconds > deadline:
            raise self._timeout(body, None)
        with self._lock:
            if self._closed:
                raise Aborted("the store is closed")
            self._lock.wait(seconds)

    def _timeout(self, body: Json, target: str | None) -> Timeout:
        hears_none = target is None or self._unheard is not None
        who = self.complaint() if hears_none else f"holder {target} does not answer"
        return Timeout(f"store: the request {body['q']!r} was not answered in time: {who}")

    def complaint(self) -> str:
        """Why this client has no leader, as far as it knows."""
        if self._unheard is None:
            return "no leader answers"
        return (
            f"the leader {self._unheard[0]} does not answer this process, and others hear it: the "
            "network between the two may be cut"
        )

    # What holders there are.

    def known(self) -> dict[str, Json]:
        """The holders that this client knows."""
        return self._known

    def lost(self) -> set[str]:
        """The holders that do not answer, as far as this client has noticed lately."""
        now = time.monotonic()
        with self._lock:
            return {holder for holder, at in self._lost.items() if now - at < _LOST_S}

    def learn(self, members: dict[str, Json]) -> None:
        """Replaces the holders that this client knows."""
        with self._lock:
            if members:
                self._known = dict(members)
                self._lost = {h: at for h, at in self._lost.items() if h in members}

    def set_leader(self, leader: str | None) -> None:
        """Whom to ask first."""
        with self._lock:
            self._leader = self._served = leader

    def found(self, node: str | None) -> None:
        """The answer of a store that was looked for by its name; "" if there is none."""
        with self._lock:
            self._found = node or ""
            self._lock.notify_all()

    def wait_found(self, timeout: float) -> str | None:
        """Waits for :meth:`found`. None after ``timeout``."""
        with self._lock:
            self._lock.wait_for(lambda: self._found is not None, timeout)
            return self._found

    # What the control tells, with its lock. No function here may wait.

    def answered(self, source: str, message: Json) -> None:
        with self._lock:
            attempt = self._attempts.get(message["a"])
        if attempt is not None and attempt.target == source:
            attempt.end(message)

    def pushed(self, source: str, message: Json) -> None:
        with self._lock:
            if message["push"] == "version":
                self._newest = max(self._newest, message["n"])
                self._lock.notify_all()
            elif message["push"] == "members":
                self._known = dict(message["members"])
                self._lost = {h: at for h, at in self._lost.items() if h in self._known}
            elif message["push"] == "moved" and source == self._leader:
                self._lose_leader()

    def down(self, peer: str) -> None:
        """A connection with a peer is over. Requests to it are sent again."""
        with self._lock:
            for attempt in self._attempts.values():
                if attempt.target == peer:
                    attempt.end(_LOST)
            if peer in self._known or peer == self._leader:
                self._lost[peer] = time.monotonic()
            if peer == self._leader:
                self._lose_leader()

    def up(self, peer: str) -> None:
        """A connection with a peer is there."""
        with self._lock:
            self._lost.pop(peer, None)
            if self._unheard is not None and self._unheard[0] == peer:
                self._unheard = None

    def tick(self) -> None:
        with self._lock:
            self._wake_keeper()

    def close(self) -> None:
        """Ends all requests, with Aborted."""
        with self._lock:
            self._closed = True
            for attempt in self._attempts.values():
                attempt.end({"error": ["Aborted", "the store is closed", -1]})
            self._lock.notify_all()

    def _lose_leader(self) -> None:
        self._leader = None
        self._changes += 1
        self._stray = bool(self._leases or self._watching)
        self._wake_keeper()

    # Leases.

    @property
    def changes(self) -> int:
        """How often the leader has changed."""
        return self._changes

    def add_lease(self, lease: str, number: int, changes: int) -> None:
        """Keeps a lease alive whoever leads. ``changes`` is what it was before the lease was asked
        for: if the leader has changed since, the next one is told of it."""
        with self._lock:
            self._leases[lease] = number
            if changes != self._changes:
                self._stray = True
                self._wake_keeper()

    def drop_lease(self, lease: str) -> None:
        """Forgets a lease."""
        with self._lock:
            self._leases.pop(lease, None)

    def holds(self, lease: str) -> bool:
        """False if a leader has said that a lease had ended."""
        with self._lock:
            return lease in self._leases

    # Watching.

    @property
    def newest(self) -> int:
        """The newest version that this client has heard of while it watched."""
        return self._newest

    def begin_watch(self, timeout: float) -> int:
        """Subscribes. Returns the newest version."""
        with self._lock:
            self._watching += 1
        try:
            return self._subscribe(timeout)
        except BaseException:
            self.end_watch()
            raise

    def end_watch(self) -> None:
        with self._lock:
            self._watching -= 1
            last = self._watching == 0 and not self._closed
        if last:
            self.post({"q": "watch", "on": False})

    def wait_newer(self, than: int, timeout: float | None) -> int | None:
        """Waits for a version newer than ``than``, and returns the newest. None after ``timeout``,
        or when the store is closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._newest > than, timeout)
            return self._newest if self._newest > than else None

    def _subscribe(self, timeout: float) -> int:
        newest = int(self.request({"q": "watch", "on": True}, timeout)["newest"])
        with self._lock:
            self._newest = max(self._newest, newest)
            self._lock.notify_all()
            return newest

    # The keeper: a thread that tells a new leader leases and the watch.

    def _wake_keeper(self) -> None:
        if not self._stray or self._closed:
            return
        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(
                target=self._keep, name="ringcoll-store-keeper", daemon=True
            )
            self._keeper.start()

    def _keep(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._stray or self._closed:
                        self._keeper = None
                        return
                    self._stray = False
                    leases, watching = dict(self._leases), self._watching
                self._renew(leases)
                if watching:
                    self._subscribe(30.0)
        except Error as error:
            with self._lock:
                self._stray = True  # the next tick tries again
                self._keeper = None
            log.debug("store: a new leader could not be told the leases: %s", error)

    def _renew(self, leases: dict[str, int]) -> None:
        if not leases:
            return
        answer: dict[str, Any] = self.request({"q": "renew", "leases": leases}, 30.0)
        with self._lock:
            # What was said of the end of a lease meanwhile has come before the renewal.
            ended = [lease for lease in leases if lease not in self._leases]
            for lease in answer["lost"]:
                self._leases.pop(lease, None)
        if ended:
            self.post({"q": "release", "leases": ended})

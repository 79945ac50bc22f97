"""Lines to servers: opened by one request to the server's node, and kept until it is down."""

from __future__ import annotations

import time

from ringcoll.errors import Error
from ringcoll.log import log
from ringcoll.tables.native import Lineable
from ringcoll.weights import agents
from ringcoll.weights.session import Session

_ASK_S = 2.0  # a server that does not answer delays the lines to others for so long
_AGAIN_S = 1.0  # it is not asked again sooner, though many shards may want it


class Lines:
    """The lines of a client or server to servers. One thread uses it."""

    def __init__(self, native: Lineable, session: Session, client: int) -> None:
        self._native, self._session, self._client = native, session, client
        self._numbers: dict[str, int] = {}  # node -> number; a node keeps it
        self._nodes: dict[int, str] = {}
        self._open: dict[str, int] = {}  # node -> how many lines there were before this one
        self._opened: dict[str, int] = {}
        self._next: dict[str, float] = {}  # when a server that has not answered is asked again

    def number(self, node: str) -> int:
        """The number of a server."""
        if node not in self._numbers:
            self._numbers[node] = len(self._numbers) + 1
            self._nodes[self._numbers[node]] = node
        return self._numbers[node]

    def node(self, number: int) -> str | None:
        """The server with a number."""
        return self._nodes.get(number)

    def is_open(self, node: str) -> bool:
        """Whether there is a line to a server."""
        return node in self._open

    def generation(self, node: str) -> int:
        """Which of the lines to a server the present one is."""
        return self._open.get(node, 0)

    def open(self, node: str) -> bool:
        """Opens a line if there is none. False if the server does not answer, or refuses."""
        if node in self._open:
            return True
        if time.monotonic() < self._next.get(node, 0.0):
            return False
        if self._try(node):
            return True
        self._next[node] = time.monotonic() + _AGAIN_S
        return False

    def _try(self, node: str) -> bool:
        number = self.number(node)
        try:
            offer = agents.encode(self._native.offer(number))
            request = {"q": "line", "client": self._client, "offer": offer}
            answer = self._session.ask(node, request, _ASK_S)
            if answer is None:
                return False
            self._native.complete(number, agents.decode(answer["answer"]))
        except Error as error:
            log.debug("tables: there is no line to %s: %s", node, error)
            return False
        self._opened[node] = self._open[node] = self._opened.get(node, 0) + 1
        return True

    def close(self, node: str) -> None:
        """The line to a server is over, if there is one."""
        if self._open.pop(node, None) is not None:
            self._native.part(self._numbers[node])

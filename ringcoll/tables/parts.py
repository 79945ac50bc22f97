"""What a store has of tables in one process: the shards that it serves, and the client of the
program. Both are made when they are first needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringcoll.errors import Aborted, Refused
from ringcoll.tables.client import Client
from ringcoll.tables.serving import Serving
from ringcoll.weights.catalog_tables import Json
from ringcoll.weights.directory import reply

if TYPE_CHECKING:
    from ringcoll.tables.saving import Read
    from ringcoll.weights.control import Control


class Parts:
    """Made with each store. All methods but client() and close() are called with the store's lock.

    ``number`` is the client's.
    """

    def __init__(self, control: Control, agent: Any, number: int) -> None:
        self._control, self._agent, self.number = control, agent, number
        self.read: Read | None = None  # reads arrays of a version
        self._serving: Serving | None = None
        self._client: Client | None = None
        self._closed = False
        self._making = threading.Lock()

    def client(self) -> Client:
        """The client, which is made by the first call."""
        with self._making:
            if self._closed:
                raise Aborted("the store is closed")
            if self._client is None:
                self._client = Client(self._control, self._agent, self.number)
            return self._client

    def follow(self) -> None:
        """The catalog has changed, and this process is a holder."""
        serving = self._get_serving()
        if serving is not None:
            serving.update()

    def asked(self, source: str, message: Json) -> None:
        """Another process asks for a line, or for the state of shards."""
        serving = self._get_serving()
        if serving is None:
            error = Refused("this process serves no tables")
            self._control.send(source, reply(message["r"], error))
        elif message["q"] == "line":
            serving.line(source, message)
        elif message["q"] == "shards":
            serving.shards(source, message)
        else:
            serving.save(source, message)

    def _get_serving(self) -> Serving | None:
        """A holder may be asked for a line before it knows that it serves a shard."""
        if self._serving is None and self._control.node is not None and not self._closed:
            self._serving = Serving(self._control, self._agent, self.number, self._read_saved)
        return self._serving

    def _read_saved(self, version: int, names: list[str]) -> Mapping[str, Any]:
        if self.read is None:
            raise Aborted("the store is not open yet")
        return self.read(version, names)

    def told(self, message: Json) -> None:
        """The leader tells where the shards of a table are."""
        if self._client is not None:
            self._client.learn(message["table"])

    def down(self, peer: str, ended: bool) -> None:
        """Another process does not answer, or has ended."""
        if self._serving is not None:
            self._serving.down(peer, ended)
        if self._client is not None:
            self._client.down(peer)

    def up(self, peer: str) -> None:
        """Another process can be reached."""
        if self._serving is not None:
            self._serving.up(peer)

    def tick(self) -> None:
        """To be called several times a second."""
        if self._serving is not None:
            self._serving.tick()
        if self._client is not None:
            self._client.tick()

    def close(self) -> None:
        """Ends all threads and calls."""
        with self._control.lock, self._making:
            self._closed = True
            client, serving = self._client, self._serving
        if client is not None:
            client.close()
        if serving is not None:
            serving.close()

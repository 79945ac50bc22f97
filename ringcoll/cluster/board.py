"""Boards: key-value stores through which the ranks exchange notes before they are connected.

A board uses the store that ``ringcoll.init()`` would use, but in pure Python, so that it works
where the library fails. Notes are JSON objects under keys. Notes may be overwritten, and notes of
an earlier run may still be there; :mod:`ringcoll.cluster.meeting` handles both.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ringcoll.cluster.wire import Wire
from ringcoll.errors import InvalidArgument, TransportError
from ringcoll.files import is_of, make_file, read_file_of, user_of_new_files

Note = dict[str, Any]

# Pauses between polls for a note: the first one, and the longest.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_REQUEST_S = 10.0
_PROOF_BYTES = 4096
_STREAM = socket.SOCK_STREAM
_SEGMENT_BYTES = 500  # fits every network (RFC 791: 576 bytes with headers)
_PREFIX = "ringcoll-cluster."


class Board(ABC):
    """One thread at a time may use it. Failures raise TransportError, which names the store and the
    cause."""

    @abstractmethod
    def put(self, key: str, note: Note) -> None: ...

    @abstractmethod
    def get(self, key: str) -> Note | None: ...

    def remove(self, key: str) -> None:  # noqa: B027 most notes end with the process that has them
        """Removes a note of this rank, if the store would keep it after the run."""

    @abstractmethod
    def close(self) -> None:
        """Closes the board. Rank 0 calls it last and removes the notes of the run."""

    def wait(self, key: str, end: float) -> Note | None:
        """Waits for a note and returns it; None if ``end`` (``time.monotonic``) passes first."""
        pause = _FIRST_PAUSE_S
        while True:
            note = self.get(key)
            left = end - time.monotonic()
            if note is not None or left <= 0:
                return note
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)


def open_board(store: str, secret: str, rank: int, end: float) -> Board:
    """The board for the URL of a store. Raises InvalidArgument for an unsuitable URL, and
    TransportError if the store cannot be reached before ``end``."""
    kind, _, rest = store.partition("://")
    if kind == "file":
        return _FileBoard(Path(rest), rank)
    where = urlsplit(f"//{rest}")
    if kind not in ("tcp", "horovod") or not where.hostname or not where.port:
        raise InvalidArgument(f"{store}: the ranks of several hosts cannot meet there")
    if kind == "horovod":
        return _HttpBoard(store, where.hostname, where.port, where.path)
    if rank == 0:
        return _ServingBoard(store, where.hostname, where.port, secret)
    return _ClientBoard(store, where.hostname, where.port, secret, end)


class _FileBoard(Board):
    """A directory. Other users may be able to write to it, so only files of this user count."""

    def __init__(self, folder: Path, rank: int) -> None:
        if not folder.is_dir():
            raise InvalidArgument(f"file://{folder}: there is no such directory on this host")
        self._folder, self._rank = folder, rank
        with self._transport_errors():
            self._user = user_of_new_files(folder)

    def put(self, key: str, note: Note) -> None:
        with self._transport_errors():
            fresh = make_file(self._folder, f"{_PREFIX}new.", json.dumps(note).encode())
            fresh.rename(self._path(key))  # so that a reader never sees a part of it

    def get(self, key: str) -> Note | None:
        with self._transport_errors():
            try:
                return _parse(read_file_of(self._user, self._path(key)))
            except FileNotFoundError:
                return None

    def remove(self, key: str) -> None:
        with self._transport_errors():
            self._path(key).unlink(missing_ok=True)

    def close(self) -> None:
        if self._rank != 0:
            return
        with self._transport_errors():
            for path in self._folder.glob(f"{_PREFIX}*"):
                if is_of(self._user, path):
                    path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / (_PREFIX + key)

    @contextlib.contextmanager
    def _transport_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransportError(f"file://{self._folder}: {error}") from error


class _HttpBoard(Board):
    """The rendezvous server of horovodrun. It ends with the job, so notes need not be removed."""

    def __init__(self, store: str, host: str, port: int, path: str) -> None:
        self._store, self._host, self._port = store, host, port
        self._scope = quote(path.strip("/") or "ringcoll", safe="")
        self.get("probe")

    def put(self, key: str, note: Note) -> None:
        status, _ = self._request("PUT", key, json.dumps(note).encode())
        if status != http.client.OK:
            raise TransportError(f"{self._store}: the server answers with status {status}")

    def get(self, key: str) -> Note | None:
        status, body = self._request("GET", key)
        return None if status == http.client.NOT_FOUND else _parse(body)

    def close(self) -> None:
        pass

    def _request(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.sock = _connect_in_small_packets(self._host, self._port, _REQUEST_S)
            connection.request(method, f"/{self._scope}/{_PREFIX}{key}", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(
                f"{self._store}: {error}; is this host able to reach the one where horovodrun runs?"
            ) from error
        finally:
            connection.close()


class _ServingBoard(Board):
    """Rank 0 of a tcp:// store. It keeps the notes, and threads serve them to the other ranks."""

    def __init__(self, store: str, host: str, port: int, secret: str) -> None:
        self._notes: dict[str, Note] = {}
        self._secret = secret
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise TransportError(
                f"{store}: {error}; rank 0 serves this store, so the address must be one of its "
                "host and the port free"
            ) from error
        threading.Thread(target=self._accept, daemon=True).start()

    def put(self, key: str, note: Note) -> None:
        self._notes[key] = note

    def get(self, key: str) -> Note | None:
        return self._notes.get(key)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits there
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TransportError, KeyError), connection:
            connection.settimeout(_REQUEST_S)
            nonce = secrets.token_hex(16)
            wire = Wire(connection)
            wire.send({"nonce": nonce})
            proof = str(wire.receive(_PROOF_BYTES).get("proof"))
            known = hmac.compare_digest(proof.encode(), _proof(self._secret, nonce).encode())
            wire.send({"welcome": known})
            connection.settimeout(None)
            while known:
                request = wire.receive()
                if "note" in request:
                    self.put(str(request["key"]), dict(request["note"]))
                wire.send({"note": self.get(str(request["key"]))})


class _ClientBoard(Board):
    """A rank other than 0 of a tcp:// store."""

    def __init__(self, store: str, host: str, port: int, secret: str, end: float) -> None:
        self._store = store
        self._wire = self._connect(host, port, end)
        nonce = str(self._exchange().get("nonce", ""))
        if not self._exchange({"proof": _proof(secret, nonce)}).get("welcome"):
            raise InvalidArgument(
                f"{store}: RINGCOLL_SECRET is not the same here as on rank 0: set it to the same "
                "value on all ranks, or on none"
            )

    def put(self, key: str, note: Note) -> None:
        self._exchange({"key": key, "note": note})

    def get(self, key: str) -> Note | None:
        note = self._exchange({"key": key}).get("note")
        return None if note is None else dict(note)

    def close(self) -> None:
        self._wire.close()

    def _connect(self, host: str, port: int, end: float) -> Wire:
        while True:
            left = end - time.monotonic()
            try:
                return Wire(_connect_in_small_packets(host, port, max(0.1, min(left, 5.0))))
            except OSError as error:  # rank 0 may not have started yet
                if time.monotonic() > end:
                    raise TransportError(
                        f"{self._store}: {error}. Rank 0 of the job serves this store: has it "
                        "started, is the address one of its host, and does a firewall let that "
                        "port through?"
                    ) from error
            time.sleep(0.1)

    def _exchange(self, message: Note | None = None) -> Note:
        try:
            self._wire.socket.settimeout(_REQUEST_S)
            if message is not None:
                self._wire.send(message)
            return self._wire.receive()
        except (OSError, TransportError) as error:
            raise TransportError(f"{self._store}, kept by rank 0: {error}") from error


def _connect_in_small_packets(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connects with a small maximum segment size, which both ends observe. So reports arrive even
    where full-size packets get lost."""
    cause: OSError = ConnectionError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(timeout_s)
            connection.connect(address)
            return connection
        except OSError as error:
            connection.close()
            cause = error
    raise cause


def _proof(secret: str, nonce: str) -> str:
    return hmac.new(secret.encode(), nonce.encode(), "sha256").hexdigest()


def _parse(text: bytes) -> Note | None:
    try:
        note = json.loads(text)
    except ValueError:
        return None
    return note if isinstance(note, dict) else None

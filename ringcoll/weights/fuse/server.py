"""The connection to the kernel: threads that answer requests, and a watchdog.

The kernel's reader waits, perhaps in a page fault that nothing can interrupt, until its request is
answered. So each request that depends on the store has a deadline. When it has passed, the watchdog
answers EIO in place of the thread, which is then stuck in the store, and starts another thread.
Only one of the two answers: the one that takes the request out of ``_pending``.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ringcoll.weights.fuse import protocol
from ringcoll.weights.fuse.protocol import Opcode, Request

log = logging.getLogger("ringcoll.mount")

# What one request reads or writes at most: the kernel's own limit (fs.fuse.max_pages_limit).
TRANSFER_BYTES = 1 << 20
# A WRITE has its data after the header and its structure.
_REQUEST_BYTES = TRANSFER_BYTES + 4096
# How many requests of readahead the kernel may have under way at a time.
_BACKGROUND = 64
_WATCHDOG_S = 0.25
_WITHOUT_REPLY = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT)
# The kernel has given up a request, or a signal came: read the next one.
_AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)

Reply = bytes | memoryview


class Handler(Protocol):
    """Answers requests, by several threads at a time."""

    def handle(self, request: Request, buffer: memoryview) -> Reply:
        """The reply's body. Data may be in ``buffer``, which has TRANSFER_BYTES. Raises OSError for
        an error of the file system."""

    def limit_s(self, request: Request) -> float | None:
        """How long the request may take; None: it does not depend on the store."""

    def overdue(self, request: Request) -> None:
        """The request was answered with an error, since it took longer."""

    def returned(self, request: Request) -> None:
        """handle() has returned for a request that was overdue."""

    def undo(self, request: Request, reply: Reply) -> None:
        """The kernel did not take this reply, and so knows nothing of what it says."""


@dataclass(slots=True)
class _Worker:
    """One thread. ``stuck``: the watchdog has answered its request, and replaced the thread."""

    stuck: bool = False


@dataclass(slots=True)
class _Pending:
    request: Request
    deadline: float
    worker: _Worker


class Server:
    """Serves a connection from start() until the file system is unmounted."""

    def __init__(self, connection: int, handler: Handler, threads: int) -> None:
        self._connection = connection
        self._handler = handler
        self._threads = threads
        self._pending: dict[int, _Pending] = {}
        self._ready = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Starts the threads. They are daemons: the process may end while they wait."""
        for _ in range(self._threads):
            self._start_worker()
        threading.Thread(target=self._watch, name="fuse watchdog", daemon=True).start()

    def wait_ready(self, timeout: float) -> bool:
        """Waits until the kernel and this server have agreed on how they speak."""
        return self._ready.wait(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the file system is unmounted and not in use. False: it is not yet."""
        return self._ended.wait(timeout)

    def _start_worker(self) -> None:
        threading.Thread(target=self._serve, args=(_Worker(),), name="fuse", daemon=True).start()

    def _serve(self, worker: _Worker) -> None:
        # Page-aligned, since registered memory is best so.
        message = memoryview(mmap.mmap(-1, _REQUEST_BYTES))
        buffer = memoryview(mmap.mmap(-1, TRANSFER_BYTES))
        while not worker.stuck:
            try:
                length = os.readv(self._connection, [message])
            except OSError as error:
                if error.errno in _AGAIN:
                    continue
                if error.errno != errno.ENODEV:  # ENODEV: unmounted
                    log.error("the connection to the kernel failed: %s", error.strerror)
                self._ended.set()
                return
            self._answer(protocol.parse(message[:length]), buffer, worker)

    def _answer(self, request: Request, buffer: memoryview, worker: _Worker) -> None:
        if request.opcode == Opcode.INIT:
            self._initialize(request)
            return
        limit_s = self._handler.limit_s(request)
        deadline = time.monotonic() + (float("inf") if limit_s is None else limit_s)
        self._pending[request.unique] = _Pending(request, deadline, worker)
        code, body = self._result(request, buffer)
        if self._pending.pop(request.unique, None) is None:
            self._handler.returned(request)
            taken = False
        else:
            taken = request.opcode in _WITHOUT_REPLY or self._reply(request, code, body)
        if not taken and not code:
            self._handler.undo(request, body)

    def _result(self, request: Request, buffer: memoryview) -> tuple[int, Reply]:
        try:
            return 0, self._handler.handle(request, buffer)
        except OSError as error:
            return error.errno or errno.EIO, b""
        except Exception:
            log.exception("request %d failed", request.opcode)
            return errno.EIO, b""

    def _initialize(self, request: Request) -> None:
        body = protocol.init_reply(request.body, TRANSFER_BYTES, _BACKGROUND)
        if body is None:
            log.error("the kernel is too old: Linux 5.4 or newer is needed")
        self._reply(request, 0 if body else errno.EPROTO, body or b"")
        if body:
            self._ready.set()

    def _reply(self, request: Request, code: int, body: Reply) -> bool:
        """Sends a reply. False: the kernel has not taken it."""
        parts: Sequence[Reply] = [body] if not code else []
        length = protocol.OUT_HEADER.size + sum(map(len, parts))
        header = protocol.OUT_HEADER.pack(length, -code, request.unique)
        try:
            os.writev(self._connection, [header, *parts])
            return True
        except OSError as error:
            # ENOENT: who asked was killed. ENODEV: unmounted.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                log.error("answer to request %d failed: %s", request.opcode, error.strerror)
            return False

    def _watch(self) -> None:
        while not self._ended.wait(_WATCHDOG_S):
            now = time.monotonic()
            for unique, pending in list(self._pending.items()):
                if now > pending.deadline:
                    self._give_up(unique, pending)

    def _give_up(self, unique: int, pending: _Pending) -> None:
        if self._pending.pop(unique, None) is None:
            return  # it was answered meanwhile
        log.error("request %d: the store did not answer in time", pending.request.opcode)
        pending.worker.stuck = True
        self._handler.overdue(pending.request)
        self._start_worker()
        self._reply(pending.request, errno.EIO, b"")

"""What a holder does with memory: it copies pieces in, pulls them from other holders, makes deltas,
and frees what its node does not need any more."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

from ringcoll import _core
from ringcoll.errors import Error
from ringcoll.log import log
from ringcoll.weights import agents, memory
from ringcoll.weights.catalog import Json
from ringcoll.weights.memory import Place, Pool

_PULL_S = 60.0
_LEAST_DELTA_BUDGET = 64 << 20
_DELTA_SHARE = 4  # deltas take at most this part of the bytes held
_WORTH = 2  # a delta must be this many times shorter than the tensor


class Copied(NamedTuple):
    """Pieces that were copied in: their places and checksums, and the handles of their blocks."""

    places: dict[str, Place]
    checksums: dict[str, int]
    regions: dict[str, str]


class Pulled(NamedTuple):
    """What came of a task: the places of the pieces that were read, and what went wrong."""

    task: Json
    places: dict[str, Place]
    problem: str


class Worker:
    """A daemon thread that runs functions in order. It starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put(function)

    def stop(self, timeout: float) -> None:
        """Lets the thread end after the function that it runs."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _run(self) -> None:
        while True:
            function = self._queue.get()
            if function is None:
                return
            try:
                function()
            except Exception:  # a defect must not end the thread
                log.exception("store: a task of %s failed", self._name)


class Holder:
    """The memory of one process for one store. Any thread may use it.

    ``info`` describes this process (:func:`agents.describe`), and ``me`` is its node's id.
    """

    def __init__(self, agent: Any, me: str, info: Json) -> None:
        self._agent = agent
        self._me = me
        self._info = info
        self.pool = Pool(agent)
        # Deltas come and go at other times than versions, and would break up the blocks of these.
        self.delta_pool = Pool(agent)
        self._lock = threading.Lock()
        self._pieces: dict[str, tuple[Place, int]] = {}  # piece -> (place, bytes)
        self._deltas: OrderedDict[tuple[str, str], tuple[Place, int] | None] = OrderedDict()
        self._delta_bytes = 0
        self._pulls: set[threading.Thread] = set()
        self._problem = ""  # of the last pull
        self._closed = False
        self._server = Worker("ringcoll-store-delta")
        self._closer = Worker("ringcoll-store-free")
        self.delta_seconds = 0.0

    # Pieces.

    def copy_in(self, pieces: Sequence[tuple[str, Callable[[], numpy.ndarray], int]]) -> Copied:
        """Copies pieces [(id, function that returns the bytes, length)]. If that fails, keeps none.
        Runs without the GIL for almost all of the time."""
        places = self.pool.allocate([size for _, _, size in pieces])
        checksums: dict[str, int] = {}
        try:
            for (pid, source, size), place in zip(pieces, places, strict=True):
                view = self.pool.view(place, size)
                checksums[pid] = _core.copy_checksum(view, source())
        except BaseException:
            self._free(self.pool, places)
            raise
        taken = {pid: place for (pid, _, _), place in zip(pieces, places, strict=True)}
        with self._lock:
            for (pid, _, size), place in zip(pieces, places, strict=True):
                self._pieces[pid] = (place, size)
        return Copied(taken, checksums, self.pool.handles(places))

    def free(self, pids: Sequence[str]) -> None:
        """Frees pieces, and the deltas from and to them."""
        with self._lock:
            gone = [self._pieces.pop(pid)[0] for pid in pids if pid in self._pieces]
            dead = set(pids)
            deltas: list[Place] = []
            for pair in [p for p in self._deltas if p[0] in dead or p[1] in dead]:
                deltas += self._forget_delta(pair)
        self._free(self.pool, gone)
        self._free(self.delta_pool, deltas)

    def _free(self, pool: Pool, places: Sequence[Place]) -> None:
        spare = pool.free(places) if places else []
        if spare:
            self._closer.submit(lambda: memory.close(spare))

    def view(self, pid: str) -> numpy.ndarray | None:
        """The bytes of a piece that this process has."""
        with self._lock:
            if pid not in self._pieces:
                return None
            place, size = self._pieces[pid]
        return self.pool.view(place, size)

    def info(self) -> Json:
        """Bytes of memory, those in use, and the seconds that deltas have taken."""
        pools = (self.pool, self.delta_pool)
        memory, used = sum(pool.total for pool in pools), sum(pool.used for pool in pools)
        return {"memory": memory, "used": used, "delta_seconds": self.delta_seconds}

    def close(self) -> None:
        """Ends the threads, and closes all memory."""
        end = time.monotonic() + 5.0
        self._closed = True
        with self._lock:
            pulls = list(self._pulls)
        for thread in pulls:
            thread.join(max(0.0, end - time.monotonic()))
        self._server.stop(5.0)
        self._closer.stop(5.0)
        self.pool.close()
        self.delta_pool.close()

    # Pulling.

    def pull(self, task: Json, finish: Callable[[Pulled], None]) -> None:
        """Pulls the pieces of a task in the background, then calls ``finish``. Each task has a
        thread of its own: a source that does not answer must not delay the copies of others."""

        def run() -> None:
            try:
                pulled = self._pull(task)
                if not self._closed:
                    finish(pulled)
            except Exception:
                log.exception("store: pieces could not be pulled")
            finally:
                with self._lock:
                    self._pulls.discard(thread)

        thread = threading.Thread(target=run, name="ringcoll-store-pull", daemon=True)
        with self._lock:
            self._pulls.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads, or no memory for one
            with self._lock:
                self._pulls.discard(thread)
            finish(Pulled(task, {}, f"holder {self._me}: {error}"))

    def keep(self, pulled: Pulled) -> Json:
        """Keeps what was pulled, and returns what the node wants to know of it. A piece that has
        come by another task meanwhile is kept once. Called with the node's lock, since the node
        frees pieces."""
        task, spare = pulled.task, []
        with self._lock:
            for pid, place in pulled.places.items():
                size = task["pieces"][pid][0]
                if self._pieces.setdefault(pid, (place, size))[0] is not place:
                    spare.append(place)
            wanted = [*task["have"], *pulled.places]
            places = {pid: self._pieces[pid][0] for pid in wanted if pid in self._pieces}
        self._free(self.pool, spare)
        done = {key: task[key] for key in ("source", "task", "owner", "e")}
        regions = self.pool.handles(list(places.values()))
        return done | {"places": places, "regions": regions, "problem": pulled.problem}

    def _pull(self, task: Json) -> Pulled:
        places: dict[str, Place] = {}
        try:
            places, problem = self._fetch(task, time.monotonic() + _PULL_S)
        except MemoryError:
            problem = f"holder {self._me} has no memory left"
        except Error as error:
            problem = f"holder {self._me}: {error}"
        if problem and problem != self._problem:
            log.warning("store: pieces could not be pulled: %s", problem)
        self._problem = problem
        return Pulled(task, places, problem)

    def _fetch(self, task: Json, end: float) -> tuple[dict[str, Place], str]:
        """Reads the pieces of a task until ``end``. Returns those that have come."""
        wanted = task["pieces"]
        pids = list(wanted)
        places = self.pool.allocate([wanted[pid][0] for pid in pids])
        kept: dict[str, Place] = {}
        problem = ""
        try:
            copies = []
            for pid, place in zip(pids, places, strict=True):
                size, _, sources = wanted[pid]
                copies.append((self.pool.view(place, size), self._sources(sources, task)))
            problem = self._read(copies, end)
            for pid, place, copy in zip(pids, places, copies, strict=True):
                if self._is_good(copy, wanted[pid][1], end):
                    kept[pid] = place
                else:
                    problem = problem or f"the bytes of {pid} differ from their checksum"
        finally:
            self._free(
                self.pool, [p for p, pid in zip(places, pids, strict=True) if pid not in kept]
            )
        return kept, problem

    def _read(self, copies: Sequence[tuple[numpy.ndarray, list[agents.Source]]], end: float) -> str:
        """Reads all pieces, or if that fails, each by itself. Returns the last problem."""
        if not copies:
            return ""
        try:
            agents.read(self._agent, copies, _left(end))
            return ""
        except Error as error:
            problem = str(error)
        for copy in copies:
            if time.monotonic() > end:
                break
            try:
                agents.read(self._agent, [copy], _left(end))
            except Error as error:
                copy[0][:1] ^= 0xFF  # what is there has to be noticed as wrong
                problem = str(error)
        return problem

    def _is_good(
        self, copy: tuple[numpy.ndarray, list[agents.Source]], checksum: int, end: float
    ) -> bool:
        """Verifies a piece, and tries its other sources if it is wrong."""
        view, sources = copy
        if _core.checksum(view) == checksum:
            return True
        for source in sources if len(sources) > 1 else ():
            if time.monotonic() > end:
                break
            try:
                agents.read(self._agent, [(view, [source])], _left(end))
            except Error:
                continue
            if _core.checksum(view) == checksum:
                return True
        return False

    def _sources(self, sources: Sequence[Sequence[Any]], task: Json) -> list[agents.Source]:
        found: list[agents.Source] = []
        for holder, region, offset in sources:
            handle = agents.decode(task["regions"][holder][str(region)])
            there = task["hosts"].get(holder) or {}
            found.append((handle, offset, agents.distance(self._info, self._me, there, holder)))
        return sorted(found, key=lambda source: source[2])

    # Deltas.

    def serve_deltas(self, message: Json, done: Callable[[Json], object]) -> None:
        """Answers "pairs" [[before, now, bytes of an element]] with the places of deltas, or null
        where there is none. Those that do not exist are made only if "make" is set."""

        def serve() -> None:
            done(self._serve_deltas(message))

        self._server.submit(serve)

    def _serve_deltas(self, message: Json) -> Json:
        if message["make"]:
            self._make_deltas(message["pairs"])
        found: list[list[int] | None] = []
        with self._lock:  # nobody frees a delta until its handle is taken
            for before, now, _ in message["pairs"]:
                delta = self._deltas.get((before, now))
                if delta is not None:
                    self._deltas.move_to_end((before, now))
                found.append([*delta[0], delta[1]] if delta else None)
            regions = self.delta_pool.handles([each for each in found if each])
        return {"deltas": found, "regions": regions}

    def _make_deltas(self, pairs: Sequence[tuple[str, str, int]]) -> None:
        """Makes the deltas that do not exist yet, and puts them into one stretch of memory."""
        start = time.perf_counter()
        made: dict[tuple[str, str], numpy.ndarray | None] = {}
        try:
            for before, now, width in pairs:
                old, new = self.view(before), self.view(now)
                with self._lock:
                    known = (before, now) in self._deltas
                if not known and old is not None and new is not None and old.nbytes == new.nbytes:
                    made[before, now] = _delta(old, new, width)
            lengths = [delta.nbytes for delta in made.values() if delta is not None]
            places = iter(self.delta_pool.allocate(lengths))
        except (MemoryError, Error) as error:
            log.warning("store: there is no memory for deltas: %s", error)
            return  # the tensors are read as a whole
        for pair, delta in made.items():
            if delta is None:
                self._keep_delta(pair, None)
                continue
            place = next(places)
            numpy.copyto(self.delta_pool.view(place, delta.nbytes), delta)
            self._keep_delta(pair, (place, delta.nbytes))
        self.delta_seconds += time.perf_counter() - start

    def _keep_delta(self, pair: tuple[str, str], delta: tuple[Place, int] | None) -> None:
        """Keeps a delta while both pieces live, and drops the oldest ones beyond the budget."""
        gone: list[Place] = []
        with self._lock:
            if pair[0] not in self._pieces or pair[1] not in self._pieces:
                gone = [delta[0]] if delta else []
            else:
                self._deltas[pair] = delta
                self._delta_bytes += delta[1] if delta else 0
                budget = sum(size for _, size in self._pieces.values()) // _DELTA_SHARE
                while self._delta_bytes > max(budget, _LEAST_DELTA_BUDGET):
                    oldest = next(iter(self._deltas))
                    if oldest == pair:
                        break
                    gone += self._forget_delta(oldest)
        self._free(self.delta_pool, gone)

    def _forget_delta(self, pair: tuple[str, str]) -> list[Place]:
        delta = self._deltas.pop(pair, None)
        if delta is None:
            return []
        self._delta_bytes -= delta[1]
        return [delta[0]]


def _delta(old: numpy.ndarray, new: numpy.ndarray, width: int) -> numpy.ndarray | None:
    """What turns the older bytes into the newer ones, or None if that is hardly shorter."""
    room = numpy.empty(max(64, new.nbytes // _WORTH), numpy.uint8)
    dtype = f"u{width}"
    length = _core.delta_make(old.view(dtype), new.view(dtype), room)
    return None if length is None else room[:length].copy()


def _left(end: float) -> float:
    return max(0.05, end - time.monotonic())

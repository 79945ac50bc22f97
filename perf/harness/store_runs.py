"""The store of weights: what is done with it, round by round, and what is reported of that."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from . import build, figures, report, rounds
from .checks import Check
from .figures import MIB
from .jobs import Job, Spec
from .one_sided import parts_of
from .places import ONE_HOST, TARGET_RATE, Pythons, wire_s

MEMCPY, FIRST, COMMIT, BACKGROUND = "memcpy", "first commits", "commit", "background"
WHOLE, SINCE = "whole", "since"
FUSE = "fuse"
FORMATS = ("npy", "safetensors")
PAGES = SMALL_PAGES, HUGE_PAGES = ("pages of 4 KiB", "huge pages")
MAPPED = {(kind, pages): f"{kind}, {pages}" for pages in PAGES for kind in FORMATS}
STORE, MOUNT = "ringcoll.Store", "mount of the store"
_NEEDS_STORE = "import torch, ringcoll; ringcoll.Store"
_NEEDS_MOUNT = f"{_NEEDS_STORE}; from ringcoll.weights.fuse import mounting; mounting.check()"
TENSORS, BYTES = 400, 1 << 30
# The store keeps two versions. The first three commits take new memory from the system, page by
# page. Later ones use the memory of the version that was dropped.
FIRST_COMMITS = 3
SHARE = 0.01  # of elements that a version changes
PASS_COPIES = 4.0  # a pass of the trainer takes as long as so many copies
MOST_PAUSE = 1.2  # of a memcpy
MOST_BACKGROUND_S = 2e-3
MOST_BYTES_OF_ONE_PERCENT = 0.04
LEAST_FASTER = 10
LEAST_MAPPED = 0.9  # of memcpy's rate
LEAST_FUSE_BYTES_S = 1e9


class Missing(Exception):
    """This machine lacks what a measurement needs; the message says what."""


@dataclass
class Setting:
    """What is measured, and how often."""

    pythons: Pythons
    logs: Path
    rounds: int
    tensors: int = TENSORS
    bytes: int = BYTES


@dataclass
class Stored:
    """What each command answered, by the rate of the place ("": one host) and the command."""

    bytes: int = BYTES
    tensors: int = TENSORS
    rounds: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)

    def note(self, rate: str, what: str, answer: list[float]) -> None:
        self.rounds.setdefault((rate, what), []).append(answer)

    def column(self, rate: str, what: str, index: int = 0) -> list[float]:
        return [answer[index] for answer in self.rounds.get((rate, what), [])]

    def middle(self, rate: str, what: str, index: int = 0) -> float | None:
        found = self.column(rate, what, index)
        return median(found) if found else None

    def ratio(self, rate: str, what: str, to: str, index: int = 0) -> float | None:
        """The median over rounds of the one over the other, in the same round."""
        pairs = zip(self.column(rate, what, index), self.column(rate, to, index), strict=False)
        found = [one / other for one, other in pairs if other]
        return median(found) if found else None

    def mapped(self, what: str, again: bool) -> float | None:
        """The rate at which mapped files are copied, the first time or again, in that of a
        memcpy."""
        found = [answer[2] / answer[again] for answer in self.rounds.get((ONE_HOST, what), [])]
        return median(found) if found else None

    def fuse_bytes_s(self) -> float | None:
        found = [size / cold for cold, size, _ in self.rounds.get((ONE_HOST, FUSE), []) if cold]
        return median(found) if found else None


# --- Measuring ---


def _find(pythons: Pythons, needs: str) -> str:
    """The Python in which these statements raise nothing."""
    reasons = []
    for python in pythons.paths:
        command = [python, "-P", "-c", needs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return python
        reasons.append(done.stderr.strip().splitlines()[-1])
    raise Missing(reasons[0])


def _ask(job: Job, line: str, answer: str = "times") -> list[float]:
    """What the rank that had something to do answers."""
    answers = job.ask(line, answer)
    [found] = [words for words in answers if words] or [[]]
    return [float(word) for word in found]


@contextmanager
def _store(rate: str, setting: Setting, path: str = "", needs: str = _NEEDS_STORE) -> Iterator[Job]:
    """A trainer and a follower, with a state dict. Raises Missing and JobError."""
    rounds.progress(f"store, {rate or 'one host'}")
    driver = str(build.DRIVERS / "store.py")
    python = _find(setting.pythons, needs)
    command = [python, driver, "{socket}", "{directory}", "{ranks}", "0", *([path] if path else [])]
    with parts_of(rate) as parts:
        spec = Spec(f"store {rate}".strip(), command, parts=parts)
        with Job(spec, 2, setting.logs) as job:
            job.ask(f"make {setting.tensors} {setting.bytes}", "made")
            yield job


def _first_commits(job: Job) -> list[list[float]]:
    """Afterwards, commits use memory that was used before."""
    return [_ask(job, COMMIT) for _ in range(FIRST_COMMITS)]


def measure_commits(setting: Setting, stored: Stored) -> None:
    """On one host: memcpy, commit, reads by another process, a commit in the background."""
    with _store(ONE_HOST, setting) as job:
        for answer in _first_commits(job):
            stored.note(ONE_HOST, FIRST, answer)
        for turn in range(setting.rounds):
            _ask(job, SINCE)  # the follower has the newest version
            job.ask(f"change {SHARE}", "changed")
            for what in rounds.rotated([MEMCPY, COMMIT], turn):
                stored.note(ONE_HOST, what, _ask(job, what))
            _read_both(job, ONE_HOST, turn, stored)
            pass_s = PASS_COPIES * max(stored.column(ONE_HOST, COMMIT))
            stored.note(ONE_HOST, BACKGROUND, _ask(job, f"{BACKGROUND} {pass_s}"))


def measure_deltas(rate: str, setting: Setting, stored: Stored) -> None:
    """Between two hosts: a whole version, and what has changed since the one before."""
    with _store(rate, setting) as job:
        _first_commits(job)
        _ask(job, SINCE)  # the follower has the first version
        for turn in range(setting.rounds):
            job.ask(f"change {SHARE}", "changed")
            _ask(job, COMMIT)
            _read_both(job, rate, turn, stored)


def _read_both(job: Job, rate: str, turn: int, stored: Stored) -> None:
    """The follower has the version before the newest already."""
    for what in rounds.rotated([WHOLE, SINCE], turn):
        stored.note(rate, what, _ask(job, what))
    job.ask("compare", "compared")


def measure_files(pages: str, setting: Setting, stored: Stored) -> None:
    """On one host: files on tmpfs, which are mapped."""
    with _tmpfs(pages) as path, _store(ONE_HOST, setting, path) as job:
        _first_commits(job)
        for turn in range(setting.rounds):
            _ask(job, COMMIT)
            for kind in rounds.rotated(list(FORMATS), turn):
                stored.note(ONE_HOST, MAPPED[kind, pages], _ask(job, kind))


@contextmanager
def _tmpfs(pages: str) -> Iterator[str]:
    """A folder whose files have such pages. For huge ones a tmpfs is mounted, which needs root."""
    with tempfile.TemporaryDirectory(prefix="perf-", dir="/dev/shm") as path:
        if pages == SMALL_PAGES:
            yield path
            return
        options = ["-t", "tmpfs", "-o", "huge=within_size", "ringcoll-perf"]
        try:
            build.run(["mount", *options, path], "a tmpfs with huge pages")
        except build.BuildError as error:
            raise Missing(str(error)) from None
        try:
            yield path
        finally:
            build.run(["umount", "--lazy", path], "umount")


def measure_mount(setting: Setting, stored: Stored) -> None:
    """On one host: a file of a mount, which nobody has read."""
    with _store(ONE_HOST, setting, needs=_NEEDS_MOUNT) as job:
        _first_commits(job)
        job.ask("mount", "mounted")
        for _ in range(setting.rounds):
            _ask(job, COMMIT)
            stored.note(ONE_HOST, FUSE, _ask(job, FUSE))


# --- Reporting ---


def checks(stored: Stored) -> list[Check]:
    pause = Check(f"commit: at most {MOST_PAUSE} times a memcpy of the state dict")
    value = stored.ratio(ONE_HOST, COMMIT, MEMCPY)
    pause.note("one host", value, value is not None and value <= MOST_PAUSE)
    most = f"commit(wait=False): pauses at most {MOST_BACKGROUND_S * 1e3:.0f} ms"
    background = Check(most, unit="ms")
    seconds = stored.middle(ONE_HOST, BACKGROUND)
    if seconds is not None:
        background.note("one host", seconds * 1e3, seconds <= MOST_BACKGROUND_S)
    least = f"a delta of {SHARE:.0%}: at most {MOST_BYTES_OF_ONE_PERCENT:.0%} of the bytes"
    part = Check(least, unit="%")
    faster = Check(f"a delta of {SHARE:.0%}: at least {LEAST_FASTER} times as fast as the whole")
    size = stored.middle(TARGET_RATE, SINCE, 1)
    if size is not None:
        of_whole, met = size / stored.bytes, size / stored.bytes <= MOST_BYTES_OF_ONE_PERCENT
        part.note(f"two hosts at {TARGET_RATE}", of_whole * 100, met)
    value = stored.ratio(TARGET_RATE, WHOLE, SINCE)
    faster.note(f"two hosts at {TARGET_RATE}", value, value is not None and value >= LEAST_FASTER)
    mapped = Check(f"files, mapped and copied: at least {LEAST_MAPPED} of memcpy's rate")
    for what in MAPPED.values():
        value = stored.mapped(what, again=False)
        mapped.note(what, value, value is not None and value >= LEAST_MAPPED)
    mount = Check("a mount, read cold: at least 1 GB/s", unit="GB/s")
    value = stored.fuse_bytes_s()
    if value is not None:
        mount.note("one host", value / 1e9, value >= LEAST_FUSE_BYTES_S)
    return [pause, background, part, faster, mapped, mount]


# What a row says, what was asked, and which of the answers it shows.
_ROWS = [
    ("memcpy of the state dict", MEMCPY, 0),
    (f"each of the first {FIRST_COMMITS} commits", FIRST, 0),
    ("commit", COMMIT, 0),
    ("commit(wait=False): pause", BACKGROUND, 0),
    ("get_state_dict", WHOLE, 0),
    (f"get_state_dict(since=), {SHARE:.0%} changed", SINCE, 0),
    *(
        (f"files, mapped and copied{when}: {what}", what, index)
        for what in MAPPED.values()
        for index, when in enumerate(("", " again"))
    ),
    ("model.safetensors of a mount, cold", FUSE, 0),
    ("the same file read again", FUSE, 2),
]


def _row(stored: Stored, rate: str, text: str, what: str, index: int) -> list[str]:
    seconds = stored.middle(rate, what, index)
    assert seconds is not None
    rate_of_all = f"{stored.bytes / seconds / 1e9:.2f} GB/s" if what != BACKGROUND else "–"
    moved = stored.middle(rate, what, 1) if what in (WHOLE, SINCE) else None
    ratio = _of_memcpy(stored, rate, what, index)
    return [
        text,
        figures.format_seconds(seconds),
        rate_of_all,
        "–" if ratio is None else f"{ratio:.2f}",
        "–" if moved is None else f"{moved / MIB:,.1f} MiB",
    ]


def _of_memcpy(stored: Stored, rate: str, what: str, index: int) -> float | None:
    """A time over that of a memcpy: of the same round, where each round has one."""
    if what in (COMMIT, BACKGROUND):
        return stored.ratio(rate, what, MEMCPY)
    if what in MAPPED.values():
        part = stored.mapped(what, index == 1)
        return 1 / part if part else None
    seconds, memcpy = stored.middle(rate, what, index), stored.middle(rate, MEMCPY)
    return seconds / memcpy if seconds and memcpy and what != MEMCPY else None


def sections(stored: Stored) -> list[str]:
    parts = []
    for rate in dict.fromkeys(rate for rate, _ in stored.rounds):
        rows = [_row(stored, rate, *row) for row in _ROWS if (rate, row[1]) in stored.rounds]
        place = f"two hosts at {rate}" if rate else "one host"
        wire = wire_s(rate, stored.bytes) if rate else 0
        limit = f" The wire needs {figures.format_seconds(wire)} for it." if rate else ""
        size = figures.format_size(stored.bytes)
        parts.append(f"## Store, {place}")
        parts.append(f"A state dict of {stored.tensors} tensors of bfloat16, {size}.{limit}")
        head = ["", "time", "rate of the state dict", "/ memcpy", "bytes moved"]
        parts.append(report.table(head, rows))
    return parts


def document(stored: Stored) -> dict[str, Any]:
    return {
        "bytes": stored.bytes,
        "tensors": stored.tensors,
        "rounds": [
            {"rate": rate, "what": what, "answers": answers}
            for (rate, what), answers in stored.rounds.items()
        ],
    }

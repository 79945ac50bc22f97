"""The store of weights: what is done with it, round by round, and what is reported of that."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from . import build, figures, report, rounds
from .checks import Check
from .figures import MIB
from .jobs import Job, JobError, Spec
from .one_sided import ONE_HOST, Pythons, parts_of, wire_s

MEMCPY, COMMIT, BACKGROUND = "memcpy", "commit", "background"
WHOLE, SINCE = "whole", "since"
FILES, FUSE = "files", "fuse"
AGAIN = "again"  # a row of the table
STORE, MAPPED, MOUNTED = "ringcoll.Store", "files of the store", "mount of the store"
TENSORS, BYTES = 400, 1 << 30
# Of the store's default; after one more, commits find memory that was used before.
KEPT_VERSIONS = 2
SHARE = 0.01  # of elements that a version changes
PASS_COPIES = 4.0  # a pass of the trainer takes as long as so many copies
MOST_PAUSE = 1.2  # of a memcpy
MOST_BACKGROUND_S = 2e-3
MOST_BYTES_OF_ONE_PERCENT = 0.04
LEAST_FASTER = 10
LEAST_MAPPED = 0.6  # of memcpy's rate
LEAST_FUSE_BYTES_S = 1e9
# How the files are mounted; the words of the command line are those of this ringcoll.
MOUNT = "{python} -P -m ringcoll mount {directory} --store {address} --key {key}"
_TMPFS = Path("/dev/shm")


@dataclass
class Setting:
    """What is measured, and how often."""

    pythons: Pythons
    logs: Path
    rounds: int
    tensors: int = TENSORS
    bytes: int = BYTES
    mount: str = MOUNT


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

    def mapped(self, again: bool) -> float | None:
        """The rate at which mapped files are copied, the first time or again, in that of a
        memcpy."""
        found = [answer[2] / answer[again] for answer in self.rounds.get((ONE_HOST, FILES), [])]
        return median(found) if found else None

    def fuse_bytes_s(self) -> float | None:
        found = [size / cold for cold, size, _ in self.rounds.get((ONE_HOST, FUSE), []) if cold]
        return median(found) if found else None


# --- Measuring ---


def find(pythons: Pythons) -> tuple[str, str]:
    """The Python that has the store, or why none has."""
    ask = "import torch, ringcoll; ringcoll.Store"
    said = ""
    for python in pythons.paths:
        command = [python, "-P", "-c", ask]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return python, ""
        said = said or done.stderr.strip().splitlines()[-1]
    return "", said


def _start(python: str, rate: str, setting: Setting, parts: list[Any], path: str = "") -> Job:
    command = [python, str(build.DRIVERS / "store.py"), "{socket}", "{directory}", "{ranks}", "0"]
    command += [path] if path else []
    name = f"store {rate}".strip()
    return Job(Spec(name, command, parts=parts), 2, setting.logs)


def _ask(job: Job, line: str, answer: str = "times") -> list[float]:
    """What the rank that had something to do answers."""
    answers = job.ask(line, answer)
    [found] = [words for words in answers if words] or [[]]
    return [float(word) for word in found]


def _in_store(
    rate: str,
    setting: Setting,
    work: Callable[[Job, Stored], None],
    stored: Stored,
    path: str = "",
) -> tuple[str, str] | None:
    """Starts a trainer and a follower, and has `work` use them. Returns "missing" or "failed", and
    why."""
    python, reason = find(setting.pythons)
    if not python:
        return "missing", reason
    stored.bytes, stored.tensors = setting.bytes, setting.tensors
    rounds.progress(f"store, {rate or 'one host'}")
    with parts_of(rate) as parts:
        try:
            with _start(python, rate, setting, parts, path) as job:
                job.ask(f"make {setting.tensors} {setting.bytes}", "made")
                for _ in range(KEPT_VERSIONS + 1):
                    _ask(job, COMMIT)
                work(job, stored)
        except JobError as error:
            return "failed", str(error)
    return None


def measure_commits(setting: Setting, stored: Stored) -> tuple[str, str] | None:
    """On one host: memcpy, commit, a commit in the background, reads by another process."""

    def work(job: Job, stored: Stored) -> None:
        for turn in range(setting.rounds):
            job.ask(f"change {SHARE}", "changed")
            for what in rounds.rotated([MEMCPY, COMMIT], turn):
                stored.note(ONE_HOST, what, _ask(job, what))
            pass_s = PASS_COPIES * max(stored.column(ONE_HOST, COMMIT))
            stored.note(ONE_HOST, BACKGROUND, _ask(job, f"{BACKGROUND} {pass_s}"))
            _read_both(job, ONE_HOST, turn, stored)

    return _in_store(ONE_HOST, setting, work, stored)


def measure_deltas(rate: str, setting: Setting, stored: Stored) -> tuple[str, str] | None:
    """Between two hosts: a whole version, and what has changed since the one before."""

    def work(job: Job, stored: Stored) -> None:
        _ask(job, SINCE)  # the follower has the first version
        for turn in range(setting.rounds):
            job.ask(f"change {SHARE}", "changed")
            _ask(job, COMMIT)
            _read_both(job, rate, turn, stored)

    return _in_store(rate, setting, work, stored)


def _read_both(job: Job, rate: str, turn: int, stored: Stored) -> None:
    """The first read of "since" has no version to begin with, and is not kept."""
    first = rate == ONE_HOST and turn == 0
    for what in rounds.rotated([WHOLE, SINCE], turn):
        answer = _ask(job, what)
        if not (first and what == SINCE):
            stored.note(rate, what, answer)
    job.ask("compare", "compared")


def measure_files(setting: Setting, stored: Stored) -> list[tuple[str, str, str]]:
    """On one host: mapped .npy files, and a mount. Returns (what, "missing" or "failed", why)."""
    problems: list[tuple[str, str, str]] = []
    with tempfile.TemporaryDirectory(prefix="perf-", dir=_TMPFS) as path:

        def map_files(job: Job, stored: Stored) -> None:
            for _ in range(setting.rounds):
                _ask(job, COMMIT)
                stored.note(ONE_HOST, FILES, _ask(job, FILES))

        if found := _in_store(ONE_HOST, setting, map_files, stored, path):
            problems.append((MAPPED, *found))

    def read_mount(job: Job, stored: Stored) -> None:
        job.ask(f"mount {setting.mount}", "mounted")
        for _ in range(setting.rounds):
            _ask(job, COMMIT)
            stored.note(ONE_HOST, FUSE, _ask(job, FUSE))

    if found := _in_store(ONE_HOST, setting, read_mount, stored):
        problems.append((MOUNTED, *found))
    return problems


# --- Reporting ---


def checks(stored: Stored) -> list[Check]:
    pause = Check(f"commit: at most {MOST_PAUSE} times a memcpy of the state dict")
    value = stored.ratio(ONE_HOST, COMMIT, MEMCPY)
    pause.note("one host", value, value is not None and value <= MOST_PAUSE)
    background = Check(f"commit(wait=False): pauses at most {MOST_BACKGROUND_S * 1e3:.0f} ms")
    seconds = stored.middle(ONE_HOST, BACKGROUND)
    if seconds is not None:
        background.note("one host", seconds * 1e3, seconds <= MOST_BACKGROUND_S)
    least = f"a delta of {SHARE:.0%}: at most {MOST_BYTES_OF_ONE_PERCENT:.0%} of the bytes"
    part, faster = Check(least), Check(f"a delta of {SHARE:.0%}: {LEAST_FASTER} times as fast")
    for rate in sorted({rate for rate, what in stored.rounds if what == SINCE and rate}):
        size = stored.middle(rate, SINCE, 1)
        if size is not None:
            of_whole = size / stored.bytes
            part.note(f"{rate}, in %", of_whole * 100, of_whole <= MOST_BYTES_OF_ONE_PERCENT)
        value = stored.ratio(rate, WHOLE, SINCE)
        faster.note(rate, value, value is not None and value >= LEAST_FASTER)
    mapped = Check(f"mapped files: at least {LEAST_MAPPED} of memcpy's rate")
    for again, where in ((False, "first"), (True, "again")):
        value = stored.mapped(again)
        mapped.note(where, value, value is not None and value >= LEAST_MAPPED)
    mount = Check("a mount, read cold: at least 1 GB/s")
    value = stored.fuse_bytes_s()
    if value is not None:
        mount.note("one host", value / 1e9, value >= LEAST_FUSE_BYTES_S)
    return [pause, background, part, faster, mapped, mount]


_ROWS = {
    MEMCPY: "memcpy of the state dict",
    COMMIT: "commit",
    BACKGROUND: "commit(wait=False): pause",
    WHOLE: "get_state_dict",
    SINCE: f"get_state_dict(since=), {SHARE:.0%} changed",
    FILES: ".npy files, mapped and copied",
    AGAIN: "the same mappings, copied again",
    FUSE: "model.safetensors of a mount, cold",
}


def _row(stored: Stored, rate: str, what: str) -> list[str]:
    asked, index = (FILES, 1) if what == AGAIN else (what, 0)
    seconds = stored.middle(rate, asked, index)
    assert seconds is not None
    rate_of_all = f"{stored.bytes / seconds / 1e9:.2f} GB/s" if what != BACKGROUND else "–"
    moved = stored.middle(rate, what, 1) if what in (WHOLE, SINCE) else None
    return [
        _ROWS[what],
        figures.format_seconds(seconds),
        rate_of_all,
        _of_memcpy(stored, rate, what),
        "–" if moved is None else f"{moved / MIB:,.1f} MiB",
    ]


def _of_memcpy(stored: Stored, rate: str, what: str) -> str:
    ratio = stored.ratio(rate, what, MEMCPY) if what in (COMMIT, BACKGROUND) else None
    if what in (FILES, AGAIN) and (part := stored.mapped(what == AGAIN)):
        ratio = 1 / part
    return "–" if ratio is None else f"{ratio:.2f}"


def sections(stored: Stored) -> list[str]:
    parts = []
    for rate in sorted({rate for rate, _ in stored.rounds}):
        there = [what for at, what in stored.rounds if at == rate]
        there += [AGAIN] if FILES in there else []
        rows = [_row(stored, rate, what) for what in _ROWS if what in there]
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

"""Deltas of bfloat16 tensors: what is timed, and the report of it."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from . import build, report
from .figures import format_size
from .findings import Findings

READ, COPY, SUM, COPY_SUM = "read both versions", "copy", "checksum", "copy and checksum"
MAKE, APPLY, NUMPY = "delta_make", "delta_apply", "NumPy: !=, flatnonzero, take"
DENSITIES = (0.0, 0.001, 0.01, 0.1)
LEAST_READ_RATIO = 0.7
MOST_BYTES_OF_ONE_PERCENT = 0.04

# A row of the table: what is done, and the share of changed elements, if that matters.
Row = tuple[str, float | None]


@dataclass
class Results(Findings):
    bytes: int = 0
    rounds: dict[Row, list[float]] = field(default_factory=dict)  # seconds
    lengths: dict[float, int] = field(default_factory=dict)  # of deltas, by share of changes

    def seconds(self, row: Row) -> float:
        return median(self.rounds[row])

    def read_ratio(self, share: float) -> float:
        """The median over rounds of the time to read both versions over that of delta_make."""
        pairs = zip(self.rounds[READ, None], self.rounds[MAKE, share], strict=True)
        return median(read / make for read, make in pairs)


def targets(results: Results) -> list[tuple[str, bool, str]]:
    """What is wanted, whether it is met, and the figure."""
    ratio = results.read_ratio(0.01)
    part = results.lengths[0.01] / results.bytes
    return [
        (
            f"delta_make with 1 % of changes at least {LEAST_READ_RATIO} times as fast as reading",
            ratio >= LEAST_READ_RATIO,
            f"{ratio:.2f}",
        ),
        (
            f"a delta of 1 % of changes has at most {MOST_BYTES_OF_ONE_PERCENT:.0%} of the bytes",
            part <= MOST_BYTES_OF_ONE_PERCENT,
            f"{part:.2%}",
        ),
    ]


def to_json(results: Results) -> str:
    document = results.document()
    document["bytes"] = results.bytes
    document["rounds"] = [
        {"what": what, "changed": share, "seconds": seconds}
        for (what, share), seconds in results.rounds.items()
    ]
    document["lengths"] = [{"changed": k, "bytes": v} for k, v in results.lengths.items()]
    document["targets"] = [
        {"target": text, "met": met, "figure": figure} for text, met, figure in targets(results)
    ]
    return json.dumps(document, indent=1) + "\n"


def to_markdown(results: Results) -> str:
    rows = []
    for row in results.rounds:
        what, share = row
        seconds = results.seconds(row)
        both = what in (READ, MAKE, NUMPY)  # what reads both versions
        rate = (2 if both else 1) * results.bytes / seconds / 1e9
        length = results.lengths.get(share) if what == MAKE and share is not None else None
        rows.append(
            [
                what,
                "-" if share is None else f"{share:.1%}",
                f"{seconds * 1e3:.1f} ms",
                "-" if what == APPLY else f"{rate:.1f} GB/s",
                f"{results.read_ratio(share):.2f}" if what == MAKE and share is not None else "-",
                "-" if length is None else f"{length / results.bytes:.3%}",
            ]
        )
    head = ["what", "changed", "time", "rate", "read / delta_make", "delta / tensor"]
    parts = [f"# {results.title}", results.method, report.properties(results)]
    parts += [f"Tensors of {format_size(results.bytes)}.", report.table(head, rows), "## Targets"]
    parts.append(
        "\n".join(
            f"- {'met' if met else 'NOT MET'}: {text} ({figure})"
            for text, met, figure in targets(results)
        )
    )
    parts += report.not_measured(results.missing, results.failures)
    return "\n\n".join(parts) + "\n"


def _library(path: Path) -> ctypes.CDLL:
    """libringcoll.so by its C ABI, so that any build can be timed."""
    library = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.ringcoll_delta_make.argtypes = [pointer, pointer, size, ctypes.c_int, pointer, size]
    library.ringcoll_delta_make.argtypes += [ctypes.POINTER(size)]
    library.ringcoll_delta_apply.argtypes = [pointer, size, pointer, size]
    library.ringcoll_checksum.argtypes = [pointer, size, pointer]
    library.ringcoll_copy_checksum.argtypes = [pointer, pointer, size, pointer]
    return library


class Bench:
    """The tensors, and what is done with them."""

    def __init__(self, library: Path, directory: Path, total_bytes: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        reader = directory / "read_two.so"
        flags = ["-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC"]
        build.run(["cc", *flags, str(build.DRIVERS / "read_two.c"), "-o", str(reader)], "read_two")
        self._read = ctypes.CDLL(str(reader)).read_two
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._library = _library(library)
        random = np.random.default_rng(1)
        # The bits of bfloat16; NumPy has no such type.
        self.before = random.integers(0, 1 << 16, total_bytes // 2, np.uint16)
        self.now = self.before.copy()
        self.out = np.ones_like(self.before)
        self.room = np.ones(total_bytes, np.uint8)
        self.length = 0

    def change(self, share: float) -> None:
        """Makes `now` differ from `before` in about this share of elements."""
        np.copyto(self.now, self.before)
        random = np.random.default_rng(2)
        count = round(share * len(self.now))
        self.now[random.integers(0, len(self.now), count)] ^= 1

    def read(self) -> None:
        self._read(self.before.ctypes.data, self.now.ctypes.data, self.before.nbytes // 8)

    def make(self) -> None:
        length = ctypes.c_size_t()
        status = self._library.ringcoll_delta_make(
            self.before.ctypes.data,
            self.now.ctypes.data,
            self.now.nbytes,
            self.now.itemsize,
            self.room.ctypes.data,
            self.room.nbytes,
            ctypes.byref(length),
        )
        assert status == 0
        self.length = length.value

    def apply(self) -> None:
        status = self._library.ringcoll_delta_apply(
            self.out.ctypes.data, self.out.nbytes, self.room.ctypes.data, self.length
        )
        assert status == 0

    def by_numpy(self) -> None:
        indices = np.flatnonzero(self.before != self.now)
        indices.astype(np.uint32)
        self.now.take(indices)

    def copy(self) -> None:
        np.copyto(self.out, self.now)

    def checksum(self) -> None:
        total = ctypes.c_uint64()
        self._library.ringcoll_checksum(self.now.ctypes.data, self.now.nbytes, ctypes.byref(total))

    def copy_checksum(self) -> None:
        total = ctypes.c_uint64()
        self._library.ringcoll_copy_checksum(
            self.out.ctypes.data, self.now.ctypes.data, self.now.nbytes, ctypes.byref(total)
        )


def measure(bench: Bench, rounds: int, results: Results) -> None:
    """Each round does everything once, with each share of changes."""

    def timed(row: Row, action: Callable[[], None]) -> None:
        begin = time.perf_counter()
        action()
        results.rounds.setdefault(row, []).append(time.perf_counter() - begin)

    plain: dict[str, Callable[[], None]] = {READ: bench.read, COPY: bench.copy}
    plain |= {SUM: bench.checksum, COPY_SUM: bench.copy_checksum}
    results.bytes = bench.now.nbytes
    for _ in range(rounds):
        for what, action in plain.items():
            timed((what, None), action)
        for share in DENSITIES:
            bench.change(share)
            np.copyto(bench.out, bench.before)
            timed((MAKE, share), bench.make)
            results.lengths[share] = bench.length
            timed((APPLY, share), bench.apply)
            if not np.array_equal(bench.out, bench.now):
                results.failures.append(f"{share:.1%}: the delta gives another tensor")
            timed((NUMPY, share), bench.by_numpy)

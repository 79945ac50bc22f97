"""How large things are: often at a threshold of the library, or one element beside it."""

from __future__ import annotations

from random import Random

_KIB = 1 << 10
_MIB = 1 << 20
# Where the library changes its ways: lines, RINGCOLL_INLINE_BYTES, pages, short messages over
# verbs (8 KiB) and of tags (64 KiB), RINGCOLL_HANDED_BYTES (128 KiB), stretches (512 KiB), pieces.
_THRESHOLDS = [
    16,
    64,
    128,
    _KIB,
    4 * _KIB,
    8 * _KIB,
    16 * _KIB,
    64 * _KIB,
    128 * _KIB,
    256 * _KIB,
    512 * _KIB,
    _MIB,
    2 * _MIB,
    4 * _MIB,
]


def some_bytes(rng: Random, limit: int) -> int:
    kind = rng.random()
    if kind < 0.06:
        return 0
    if kind < 0.35:
        return rng.randint(1, min(limit, 300))
    if kind < 0.85:
        possible = [each for each in _THRESHOLDS if each <= limit] or [limit]
        # The large ones cost most and are met by few knobs more: they come less often.
        weights = [1 / (1 + i / 4) for i in range(len(possible))]
        near: int = rng.choices(possible, weights)[0]
        return max(0, min(limit, near + rng.choice([-8, -1, 0, 0, 0, 1, 8])))
    return int(limit ** rng.uniform(0.3, 1))


def some_elements(rng: Random, limit_bytes: int, width: int) -> int:
    count = some_bytes(rng, limit_bytes) // width
    return max(0, count + rng.choice([0, 0, 0, 1, -1]))


_VALUES = {
    "INLINE_BYTES": ["0", "64", "256", "4K"],
    "HANDED_BYTES": ["0", "4K", "32K", "1M"],
    "SEGMENT_BYTES": ["1K", "4K", "64K", "1M"],
    "SLOTS": ["2", "3", "8"],
    "ARENA_BYTES": ["1M", "4M", "16M"],
    "TCP_STREAMS": ["1", "2", "4"],
    "SPIN_US": ["0", "1", "200"],
}
# Rows that are offered for all ranks on all hosts (docs/algorithms.md).
_ALGORITHMS = {
    "allreduce": ["ring", "recursive_doubling", "halving_doubling"],
    "reduce_scatter": ["ring", "halving"],
    "allgather": ["ring", "doubling"],
    "broadcast": ["binomial", "chain", "scatter_allgather"],
    "reduce": ["binomial", "chain", "scatter_gather"],
    "gather": ["direct", "binomial"],
    "scatter": ["direct", "binomial"],
    "scan": ["chain", "recursive_doubling"],
    "exscan": ["chain", "recursive_doubling"],
}


def some_knobs(rng: Random) -> dict[str, str]:
    """Knobs of a job; mostly the defaults. Small ones make small tensors cross what only large ones
    would."""
    chosen = {}
    for name, values in _VALUES.items():
        value = rng.choice(values)
        if rng.random() < 0.2:
            chosen[f"RINGCOLL_{name}"] = value
    rows = [f"{name}={rng.choice(rows)}" for name, rows in _ALGORITHMS.items()]
    if rng.random() < 0.3:
        chosen["RINGCOLL_ALGORITHM"] = ",".join(rng.sample(rows, 3))
    return chosen

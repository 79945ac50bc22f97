"""Collectives beside allreduce: what a size is of each, who computes them, what is asked for."""

from __future__ import annotations

from dataclasses import replace

from .figures import MIB, OURS, SIZES, Target
from .jobs import Spec

# What the vector is of which a size has the bytes.
VECTORS = {
    "reduce_scatter": "what each rank puts in; it gets its part of the sum",
    "allgather": "what each rank gets; it puts its part in",
    "broadcast": "what rank 0 sends to all others",
    "alltoall": "what each rank puts in, and gets: a part for each rank, and one of each",
}
COLLECTIVES = list(VECTORS)
# A root sends all of its vector; elsewhere ranks have parts of it.
WHOLE = ("broadcast",)
PEERS = (OURS, "Open MPI", "Intel MPI", "MPICH")
DEFAULT_PEERS = [OURS, "Open MPI", "Intel MPI"]
TO_64_MIB = [size for size in SIZES if size <= 64 * MIB]
ELEMENT_BYTES = 4


def sizes_of(collective: str, sizes: list[int], ranks: int) -> list[int]:
    """The sizes, rounded up to as many elements for each rank where they have parts."""
    unit = ELEMENT_BYTES if collective in WHOLE else ELEMENT_BYTES * ranks
    return sorted({-(-size // unit) * unit for size in sizes})


def told(specs: list[Spec], collective: str) -> list[Spec]:
    """The peers, with the collective that they compute."""
    variable = {"PERF_COLLECTIVE": collective}
    return [replace(spec, environment=spec.environment | variable) for spec in specs]


def targets(ranks: list[int]) -> list[Target]:
    """Never behind."""
    return [Target(peer, n, 1.0) for n in ranks for peer in DEFAULT_PEERS if peer != OURS]

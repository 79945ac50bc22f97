"""Weights: versions of named tensors in memory of several processes, and the same versions as
files.

:class:`Store` is what programs use. How a store works is said in docs/design.md; in short:

===================================== ==========================================================
``catalog``, ``quorum``, ``replica``  the metadata that all holders have alike, and how
``commits``, ``tasks``, ``directory`` what the leader decides
``node``                              a holder as a state machine without I/O
``endpoint``, ``control``             messages
``memory``, ``holder``, ``agents``    pieces in memory, and copies
``session``, ``writing``              a client's requests and commits
``reading``, ``updates``              a client's reads and deltas
``arrays``, ``slices``, ``dtypes``    tensors of all libraries
``archive``, ``follower``, ``export`` files
===================================== ==========================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcoll.weights.store import Lease, Pending, Store, Update, Version

__all__ = ["Lease", "Pending", "Store", "Update", "Version"]


def __getattr__(name: str) -> Any:
    """Imports NumPy and the store when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ringcoll.weights import store

    return getattr(store, name)

"""Collective communication over RDMA, shared memory and TCP.

>>> import numpy, ringcoll
>>> world = ringcoll.init()  # rank, size and store from horovodrun, mpirun, srun or torchrun
>>> total = world.allreduce(numpy.ones(3))
"""

import importlib.util as _importlib_util
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _importlib_util.find_spec("ringcoll._core") is None:
    raise ImportError(
        f"{__path__[0]} holds ringcoll's Python files without its extension: it is a folder of "
        "sources. Start from another folder, where `pip install`ed ringcoll is found"
    )

from ringcoll._version import __version__
from ringcoll.communicator import Communicator
from ringcoll.errors import (
    Aborted,
    Error,
    Gone,
    InternalError,
    InvalidArgument,
    MessageTooLong,
    Mismatch,
    PeerLost,
    Refused,
    Timeout,
    TransportError,
)
from ringcoll.handles import Handle
from ringcoll.job import init, shutdown, world
from ringcoll.messages import ANY_SOURCE, ANY_TAG, Received
from ringcoll.remote import Agent, Event, Guest, Read, Region, Write, connect, empty, serve

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "Aborted",
    "Agent",
    "Communicator",
    "Error",
    "Event",
    "Gone",
    "Guest",
    "Handle",
    "InternalError",
    "InvalidArgument",
    "MessageTooLong",
    "Mismatch",
    "PeerLost",
    "Read",
    "Received",
    "Refused",
    "Region",
    "Store",
    "Timeout",
    "TransportError",
    "Write",
    "__version__",
    "connect",
    "empty",
    "init",
    "serve",
    "shutdown",
    "world",
]


if _TYPE_CHECKING:
    from ringcoll.weights import Store
else:

    def __getattr__(name: str) -> _Any:
        """Imports the store of weights, and with it NumPy, when it is first asked for."""
        if name != "Store":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ringcoll.weights import Store

        return Store

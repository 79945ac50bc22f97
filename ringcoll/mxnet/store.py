"""The store that ``mx.kv.create("ringcoll")`` makes."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from mxnet.kvstore.kvstore import KVStore
from mxnet.ndarray import NDArray

from ringcoll.log import log
from ringcoll.mxnet import arrays, launch
from ringcoll.mxnet.errors import InvalidArgument
from ringcoll.mxnet.keys import Key

_SET_OPTIMIZER, _SET_MULTI_PRECISION = 0, 1  # commands that MXNet's own store sends to servers


# A KVStore, not only a KVStoreBase: gluon's Trainer refuses others for sparse gradients.
class Ringcoll(KVStore):  # type: ignore[misc]
    """A key-value store of MXNet over tables of ringcoll.

    Synchronous, each worker pushes a key once in a round. A worker that has pushed pulls what the
    whole round has made of the value: the sum of the pushes in place of the old value or, with an
    optimizer, one update by the sum. Asynchronous, each push is an update by itself.

    ``init``, ``broadcast`` and ``barrier`` are collective. ``push`` waits until the arrays are
    computed and the servers have them, not for other workers. What pulls returns when the arrays
    are ready. Priorities change nothing.
    """

    def __init__(
        self,
        kind: str = "dist_sync_ringcoll",
        announce: bool = False,
        job: launch.Job | None = None,
    ) -> None:
        # Not that of KVStore, which takes a handle of MXNet's library.
        self._job = launch.job() if job is None else job
        self._kind = kind
        self._synchronous = "async" not in kind
        self._prefix = self._job.next_prefix()
        self._keys: dict[int | str, Key] = {}
        self._optimizer: Any = None
        if announce and self.rank == 0:
            _announce(kind)

    def __del__(self) -> None:
        """KVStore's own frees a handle, which this one has not."""

    # Who takes part.

    @property
    def type(self) -> str:
        """The name by which it was made."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._job.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._job.size

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether optimizers can run in the store: they can."""
        if capability.lower() != KVStore.OPTIMIZER:
            raise InvalidArgument(f"a capability is {KVStore.OPTIMIZER!r}, not {capability!r}")
        return True

    def barrier(self) -> None:
        """Waits for all workers."""
        self._job.barrier()

    _barrier = barrier  # what MXNet's own store calls it

    # Values.

    def init(self, key: Any, value: Any) -> None:
        """Makes keys, with the values of rank 0. Collective."""
        for name, values in _pairs(key, value):
            self._make(name, values[0])
        self._job.barrier()

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """:meth:`init`, then :meth:`pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def _make(self, name: int | str, value: NDArray) -> None:
        if name in self._keys:
            raise InvalidArgument(f"init of the key {name!r}: it is there already: use push()")
        if any(type(each) is not type(name) for each in self._keys):
            raise InvalidArgument(f"the key {name!r}: keys are all integers or all texts")
        index = name if isinstance(name, int) else len(self._keys)
        table = f"{self._prefix}/{name}"
        key = Key(self._job.store, table, index, value, self._synchronous, self._optimizer)
        if self.rank == 0:
            key.assign(value)
        self._keys[name] = key

    def _key(self, name: int | str) -> Key:
        if name not in self._keys:
            raise InvalidArgument(f"there is no key {name!r}: call init() first")
        return self._keys[name]

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Pushes arrays; those of one key are summed first."""
        calls = [self._key(name).start_push(values) for name, values in _pairs(key, value)]
        for call in calls:
            call.wait()

    def pull(
        self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True
    ) -> None:
        """Pulls values into arrays; those that are row_sparse only if asked to."""
        for name, outs in _pairs(key, out):
            wanted = [each for each in outs if not (ignore_sparse and arrays.is_sparse(each))]
            if wanted:
                self._key(name).pull(wanted)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """:meth:`push`, then :meth:`pull` into ``out`` or, without it, into the arrays that were
        pushed."""
        targets = list(_pairs(key, value if out is None else out))
        self.push(key, value)
        for name, outs in targets:
            self._key(name).pull(outs)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Pulls rows into row_sparse arrays. One array of ids is for all arrays of the key."""
        ids = list(_pairs(key, row_ids))
        for (name, outs), (_, wanted) in zip(_pairs(key, out), ids, strict=True):
            if len(wanted) not in (1, len(outs)):
                raise InvalidArgument(
                    f"row_sparse_pull of {name!r}: {len(wanted)} arrays of ids for {len(outs)} "
                    "arrays: pass one, or one for each"
                )
            for number, each in enumerate(outs):
                self._key(name).pull_rows(each, wanted[number % len(wanted)])

    # Optimizers.

    def set_optimizer(self, optimizer: Any) -> None:
        """Has the optimizer run in the servers. All workers call it, before they push gradients.
        Later, another learning rate goes on with the momentum that there is."""
        self._optimizer = optimizer
        for key in self._keys.values():
            key.set_optimizer(optimizer)

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Raises InvalidArgument: gradients are sent as they are."""
        if compression_params.get("type", "none") != "none":
            raise InvalidArgument(
                f"gradient compression {compression_params} is not supported by ringcoll, which "
                "sends gradients as they are: leave compression_params away"
            )

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Raises InvalidArgument, as MXNet's distributed stores raise an error."""
        _no_states()

    def load_optimizer_states(self, fname: str) -> None:
        """Raises InvalidArgument, as MXNet's distributed stores raise an error."""
        _no_states()

    def _set_updater(self, updater: Any) -> None:
        raise InvalidArgument(
            "functions of this process do not run in servers: set_optimizer() does"
        )

    def _send_command_to_servers(self, head: int, body: str) -> None:
        if head == _SET_OPTIMIZER:
            self.set_optimizer(pickle.loads(body.encode("latin-1")))
        elif head != _SET_MULTI_PRECISION:
            raise InvalidArgument(f"command {head}: ringcoll's servers take no commands of MXNet's")


@functools.cache
def _announce(kind: str) -> None:
    log.warning("MXNet's store %r is ringcoll's, since RINGCOLL_MXNET is set", kind)


def _no_states() -> NoReturn:
    raise InvalidArgument(
        "states of optimizers are in the servers, and are no file of a worker: set "
        "update_on_kvstore=False, or keep them with the tables"
    )


def _pairs(key: Any, value: Any) -> Iterator[tuple[int | str, Sequence[NDArray]]]:
    """Each key with its arrays: MXNet takes a key or a list of keys, and for each key an array or a
    list of arrays."""
    if not isinstance(key, (list, tuple)):
        key, value = [key], [value]
    if not isinstance(value, (list, tuple)) or len(key) != len(value):
        raise InvalidArgument(f"there are {len(key)} keys: pass as many arrays, or lists of arrays")
    for name, each in zip(key, value, strict=True):
        if not isinstance(name, (int, str)):
            raise InvalidArgument(f"a key is an integer or a text, not {name!r}")
        found = each if isinstance(each, (list, tuple)) else [each]
        if not found or not all(isinstance(array, NDArray) for array in found):
            raise InvalidArgument(f"the value of key {name!r} is an NDArray or a list of them")
        yield name, found

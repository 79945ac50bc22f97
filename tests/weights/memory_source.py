"""A source for the FUSE file system that keeps its versions in the memory of this process, and can
behave badly."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ringcoll.errors import InvalidArgument
from ringcoll.weights import dtypes
from ringcoll.weights.formats import Manifest, Piece, Tensor
from ringcoll.weights.source import StagedTensor, VersionInfo


class MemoryLease:
    def __init__(self, source: MemorySource, version: int) -> None:
        self._source = source
        self._version = version

    def close(self) -> None:
        self._source.unlease(self._version)


class MemorySource:
    """``keep``: how many of the newest versions stay if nobody has a lease of an older one.

    ``refuse``, ``stuck`` and ``lost`` make it behave badly. ``reads`` counts bytes.
    """

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.stuck = threading.Event()
        self.go_on = threading.Event()
        self.lost = False
        self.bytes_read = 0
        self.leases: dict[int, int] = {}
        self._lock = threading.Lock()
        self._versions: dict[int, tuple[Manifest, dict[str, np.ndarray]]] = {}
        self._newest = 0

    def put(
        self,
        arrays: Mapping[str, np.ndarray],
        metadata: Mapping[str, Any] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> int:
        """Commits arrays. ``types``: of those whose elements NumPy cannot name."""
        tensors, data = [], {}
        for name, array in arrays.items():
            dtype = (types or {}).get(name) or dtypes.of_numpy(array.dtype).name
            tensors.append(Tensor(name, dtype, array.shape))
            data[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._add(tensors, data, metadata or {})

    def retire(self, version: int) -> None:
        with self._lock:
            self._versions.pop(version, None)

    def unlease(self, version: int) -> None:
        with self._lock:
            self.leases[version] -= 1
            if not self.leases[version]:
                del self.leases[version]
            self._retire_old()

    # The interface

    def versions(self, timeout: float) -> Sequence[VersionInfo]:
        self._behave(timeout)
        with self._lock:
            return [
                VersionInfo(number, manifest.bytes, manifest.time)
                for number, (manifest, _) in sorted(self._versions.items())
            ]

    def manifest(self, version: int, timeout: float) -> Manifest:
        self._behave(timeout)
        return self._versions[version][0]

    def lease(self, version: int, timeout: float) -> MemoryLease:
        self._behave(timeout)
        with self._lock:
            if version not in self._versions:
                raise KeyError(version)
            self.leases[version] = self.leases.get(version, 0) + 1
        return MemoryLease(self, version)

    def read(self, version: int, pieces: Sequence[Piece], timeout: float) -> None:
        self._behave(timeout)
        data = self._versions[version][1]
        for piece in pieces:
            end = piece.offset + len(piece.out)
            # numpy copies without the interpreter lock.
            np.copyto(np.frombuffer(piece.out, np.uint8), data[piece.name][piece.offset : end])
            self.bytes_read += len(piece.out)

    def commit(
        self, tensors: Sequence[StagedTensor], metadata: Mapping[str, Any], timeout: float
    ) -> int:
        self._behave(timeout)
        if metadata.get("refuse"):
            raise InvalidArgument(f"the store refuses: {metadata['refuse']}")
        if "sleep" in metadata:
            time.sleep(metadata["sleep"])
        with self._lock:
            manifest, data = self._versions.get(self._newest, (Manifest(0, ()), {}))
        data, known = dict(data), {tensor.name: tensor for tensor in manifest.tensors}
        for tensor in tensors:
            data[tensor.name] = np.empty(tensor.bytes, np.uint8)
            tensor.read_into(memoryview(data[tensor.name]))
            known[tensor.name] = Tensor(tensor.name, tensor.dtype, tensor.shape)
        return self._add(list(known.values()), data, metadata)

    def _add(
        self, tensors: Sequence[Tensor], data: dict[str, np.ndarray], metadata: Mapping[str, Any]
    ) -> int:
        with self._lock:
            self._newest += 1
            manifest = Manifest(self._newest, tuple(tensors), dict(metadata), time.time())
            self._versions[self._newest] = manifest, data
            self._retire_old()
            return self._newest

    def _retire_old(self) -> None:
        if self.keep is not None:
            for version in sorted(self._versions)[: -self.keep]:
                if version not in self.leases:
                    del self._versions[version]

    def _behave(self, timeout: float) -> None:
        if self.stuck.is_set() and not self.go_on.wait(timeout):
            raise TimeoutError("the store does not answer")
        if self.lost:
            raise ConnectionError("the store is lost")

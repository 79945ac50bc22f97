"""Saves versions as safetensors files, and makes versions of such files.

The safetensors package is not used. It wants all tensors of a file in memory at a time, in one
library's types; here the bytes go straight from the holders' memory to the file's pages, and from
the file to the pool. The layout is that of formats.py, and reading is that of incoming.py.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from ringcoll.errors import Gone
from ringcoll.weights import formats
from ringcoll.weights.export import FULL, DiskFull
from ringcoll.weights.incoming import Incoming
from ringcoll.weights.source import StagedTensor

if TYPE_CHECKING:
    from ringcoll.weights.manifest import Manifest
    from ringcoll.weights.store import Store

_BATCH_BYTES = 256 << 20  # read at a time


def describe(manifest: Manifest) -> formats.Manifest:
    """A version as files know it."""
    tensors = (formats.Tensor(n, t.dtype, t.shape) for n, t in manifest.tensors.items())
    metadata = manifest.metadata or {}
    return formats.Manifest(manifest.number, tuple(tensors), metadata, manifest.time)


def save(
    store: Store,
    path: Path,
    version: int,
    timeout: float,
    advance: Callable[[int], object] | None = None,
) -> Path:
    """See Store.save(). The version must be leased. ``advance`` is told of further bytes."""
    with store._leased(version, timeout) as (manifest, _):
        layout = formats.safetensors_layout(describe(manifest))
    fresh = path.parent / f".{path.name}.tmp-{secrets.token_hex(8)}"
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _reserve(path, descriptor, layout.size)
            _fill(store, descriptor, layout, version, timeout, advance or (lambda count: None))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return path


def restore(store: Store, path: Path, timeout: float | None) -> int:
    """See Store.restore()."""
    incoming = Incoming()
    try:
        incoming.add_file(path.name, path.open("rb"))  # which incoming closes
        incoming.check()
        return commit(store, list(incoming.tensors.values()), incoming.metadata, timeout)
    finally:
        incoming.close()


def commit(
    store: Store,
    tensors: Sequence[StagedTensor],
    metadata: Mapping[str, Any],
    timeout: float | None,
) -> int:
    """Makes a version of these tensors, and of nothing else."""
    there: Iterable[str] = ()
    with contextlib.suppress(Gone):  # there is no version yet
        there = store.names(timeout=timeout)
    store._writer.clear()
    try:
        for name in there:
            store._writer.delete(name)
        for tensor in tensors:
            store._writer.put_source(tensor.name, tensor.dtype, tensor.shape, _source(tensor))
        version: int = store.commit(metadata, timeout=timeout)
    except BaseException:
        store._writer.clear()  # the files are closed before another commit
        raise
    return version


def _reserve(path: Path, descriptor: int, size: int) -> None:
    """Reserves the space of a file: a full disk is an error then, and no signal later."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(
            f"{path}: its disk has no room for {max(1, size >> 20)} MiB: free some, or save to "
            "another one"
        ) from error


def _fill(
    store: Store,
    descriptor: int,
    layout: formats.Layout,
    version: int,
    timeout: float,
    advance: Callable[[int], object],
) -> None:
    """Writes a file through a mapping. Precondition: its space is reserved."""
    with mmap.mmap(descriptor, layout.size) as mapping:
        mapping[: len(layout.header)] = layout.header
        data = numpy.frombuffer(mapping, numpy.uint8)
        batch: dict[str, numpy.ndarray] = {}
        try:
            for slot in layout.slots:
                batch[slot.name] = data[slot.start : slot.start + slot.bytes]
                full = sum(each.nbytes for each in batch.values()) >= _BATCH_BYTES
                if full or slot is layout.slots[-1]:
                    store._read_bytes(version, batch, timeout)
                    advance(sum(each.nbytes for each in batch.values()))
                    batch.clear()
        finally:
            batch.clear()
            del data  # else the mapping could not be closed
        mapping.flush()


def _source(tensor: StagedTensor) -> Callable[[], numpy.ndarray]:
    def read() -> numpy.ndarray:
        data = numpy.empty(tensor.bytes, numpy.uint8)
        tensor.read_into(data.data)
        return data

    return read


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

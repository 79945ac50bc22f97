"""Versions as plain files: a directory, best on tmpfs, that any program can read.

``<directory>/<version>/<name>.npy`` and ``<directory>/<version>/model.safetensors`` hold one
version, and ``<directory>/latest`` is a symbolic link to the newest. A version appears whole, by a
rename. Readers need nothing of ringcoll. A reader that follows ``latest`` once, opens what it needs
there, and keeps it open or mapped, sees one version, also after that version has been removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ringcoll.errors import Error, InvalidArgument
from ringcoll.weights.formats import Layout, Manifest, npy_layout, safetensors_layout
from ringcoll.weights.names import MODEL_FILE, paths_of

FORMATS = ("npy", "safetensors")
LATEST = "latest"

Fill = Callable[[str, memoryview], object]

_LOCK = ".ringcoll-exporter"
_LONGEST_OWNER = 256
_LEFTOVER = re.compile(r"\.(?:\d+|latest)\.(?:tmp|gone)-[0-9a-f]{16}")
_VERSION = re.compile(r"0|[1-9][0-9]*")
FULL = (errno.ENOSPC, errno.EDQUOT)
# Space for directories, and for the ends of files in their last page.
_SPARE_BYTES = 1 << 20
_PAGE = mmap.PAGESIZE


class DiskFull(Error, OSError):
    """A file system has no room for a version. Nothing of the version is visible."""

    code = "DiskFull"


class Occupied(InvalidArgument):
    """Another Exporter writes to the directory: that of ``owner``."""

    def __init__(self, directory: Path, owner: str) -> None:
        super().__init__(f"{directory}: another process exports to it")
        self.owner = owner


class Exporter:
    """The one writer of a directory of versions.

    ``formats`` chooses the files of each version; both take the memory twice. A second Exporter of
    the same directory raises Occupied with the ``owner`` of the first. An Exporter removes what a
    killed one has left. ``goes_on`` says that the Exporter before had the same owner, so that its
    versions are those of this one. Methods are for one thread at a time.
    """

    def __init__(
        self, directory: Path | str, formats: Sequence[str] = FORMATS, owner: str = ""
    ) -> None:
        if not formats or set(formats) - set(FORMATS):
            raise InvalidArgument(f"formats {list(formats)}: choose from {', '.join(FORMATS)}")
        self.directory = Path(directory)
        self._formats = tuple(formats)
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._lock, before = _lock(self.directory, owner)
        self.goes_on = owner != "" and before == owner
        for path in list(self.directory.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                _remove(path)

    def versions(self) -> list[int]:
        """The versions in the directory, in rising order. They may be those of an earlier run."""
        names = (path.name for path in self.directory.iterdir())
        return sorted(int(name) for name in names if _VERSION.fullmatch(name))

    def latest(self) -> int | None:
        """The version that ``latest`` points to."""
        try:
            return int(str((self.directory / LATEST).readlink()))
        except (OSError, ValueError):
            return None

    def export(self, manifest: Manifest, fill: Fill, latest: bool = True) -> Path:
        """Writes one version, and returns its directory. ``fill(name, view)`` writes the data of
        one tensor, in C order, into ``view``, which is memory of the file itself. It is called once
        for each tensor that has data. ``latest`` also points the link to this version.

        Raises InvalidArgument for a name that can be no path (see names.path_of()), DiskFull,
        OSError, and what ``fill`` raises. Then nothing of the version is visible.
        """
        with self.begin(manifest) as draft:
            for name, view in draft.targets.items():
                fill(name, view)
            return draft.publish(latest)

    @contextlib.contextmanager
    def begin(self, manifest: Manifest) -> Iterator[Draft]:
        """Like export(), for a caller that fills all tensors at a time: it writes into
        ``draft.targets`` and then calls ``draft.publish()``. Without that call the files are
        removed at the end of the block."""
        files = _files(manifest, self._formats)
        self._check_space(sum(-(-layout.size // _PAGE) * _PAGE for layout in files.values()))
        draft = Draft(self, manifest.version, files)
        try:
            with _explained(self.directory):
                draft.prepare()
            yield draft
        finally:
            draft.close()

    def point(self, version: int) -> None:
        """Switches ``latest`` to this version, in one step."""
        fresh = self._hidden(LATEST, "tmp")
        with _explained(self.directory):
            fresh.symlink_to(str(version))
        fresh.replace(self.directory / LATEST)

    def remove(self, version: int) -> None:
        """Removes a version that is there. Readers that have its files open or mapped go on.
        ``latest`` must not point to it, unless it is the only version."""
        if version == self.latest():
            if self.versions() != [version]:
                raise InvalidArgument(f"version {version} is latest: point latest elsewhere first")
            (self.directory / LATEST).unlink()
        gone = self._hidden(str(version), "gone")
        (self.directory / str(version)).rename(gone)
        _remove(gone)

    def retain(self, versions: Sequence[int]) -> None:
        """Removes all versions but these. ``latest`` then points to one of these or does not
        exist."""
        there = self.versions()
        kept = [version for version in there if version in versions]
        if self.latest() not in kept:
            if kept:
                self.point(kept[-1])
            else:
                (self.directory / LATEST).unlink(missing_ok=True)
        for version in there:
            if version not in kept:
                self.remove(version)

    def close(self) -> None:
        """Gives up the directory. The files stay."""
        os.close(self._lock)

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hidden(self, name: str, why: str) -> Path:
        return self.directory / f".{name}.{why}-{secrets.token_hex(8)}"

    def _replace(self, fresh: Path, version: int) -> Path:
        """Moves a finished directory into place. One of an earlier run with the same number makes
        room."""
        path = self.directory / str(version)
        gone = self._hidden(str(version), "gone")
        with contextlib.suppress(FileNotFoundError):
            path.rename(gone)
        fresh.rename(path)
        _remove(gone)
        return path

    def _check_space(self, wanted: int) -> None:
        found = os.statvfs(self.directory)
        free = found.f_bavail * found.f_frsize
        # A file system without a limit, such as ramfs, says that it has no blocks.
        if found.f_blocks and wanted + _SPARE_BYTES > free:
            raise DiskFull(
                f"{self.directory} has {free >> 20} MiB free, and the version needs "
                f"{(wanted + _SPARE_BYTES) >> 20} MiB: free some, keep fewer versions, or export "
                "one format only"
            )


class Draft:
    """A version that is being written. ``targets`` has writable memory for each tensor that has
    data."""

    def __init__(self, exporter: Exporter, version: int, files: dict[str, Layout]) -> None:
        self.targets: dict[str, memoryview] = {}
        self.published = False
        self._exporter = exporter
        self._version = version
        self._files = files
        self._folder = exporter._hidden(str(version), "tmp")
        # A tensor that is in two files is written to one of them, and copied when all are written.
        self._copies: list[tuple[memoryview, memoryview]] = []
        self._maps: list[tuple[mmap.mmap, memoryview]] = []

    def prepare(self) -> None:
        """Makes the files, with all their blocks: without that a write to the mapped memory would
        end the process if the disk were full."""
        self._folder.mkdir(mode=0o755)
        for path, layout in self._files.items():
            file = self._folder / path
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            map_ = _make_file(file, layout.size)
            memory = memoryview(map_)
            self._maps.append((map_, memory))
            memory[: len(layout.header)] = layout.header
            for slot in layout.slots:
                view = memory[slot.start : slot.start + slot.bytes]
                if slot.name in self.targets:
                    self._copies.append((view, self.targets[slot.name]))
                else:
                    self.targets[slot.name] = view

    def publish(self, latest: bool = True) -> Path:
        """Moves the version into place. The targets must not be written afterwards."""
        for copy, original in self._copies:
            copy[:] = original
        path = self._exporter._replace(self._folder, self._version)
        self.published = True
        if latest:
            self._exporter.point(self._version)
        return path

    def close(self) -> None:
        """Unmaps the files, so that the targets can no longer be used, and removes the files if
        they are not published. A file of which the caller still has a view of its own, such as a
        NumPy array, is unmapped when that is gone."""
        views = [*self.targets.values(), *(copy for copy, _ in self._copies)]
        for view in views + [memory for _, memory in self._maps]:
            with contextlib.suppress(BufferError):
                view.release()
        for map_, _ in self._maps:
            with contextlib.suppress(BufferError):
                map_.close()
        if not self.published:
            _remove(self._folder)


def _files(manifest: Manifest, formats: Sequence[str]) -> dict[str, Layout]:
    paths = paths_of(tensor.name for tensor in manifest.tensors)
    files = {}
    if "npy" in formats:
        files = {paths[tensor.name]: npy_layout(tensor) for tensor in manifest.tensors}
    if "safetensors" in formats:
        files[MODEL_FILE] = safetensors_layout(manifest)
    return files


def _make_file(path: Path, size: int) -> mmap.mmap:
    """Maps a new file of ``size`` bytes, which is more than 0."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        os.fchmod(descriptor, 0o444)
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _lock(directory: Path, owner: str) -> tuple[int, str]:
    """Takes the lock of the directory, and writes down whose it is. Returns it, and whose it was
    before. The kernel releases the lock when the process has ended."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(directory / _LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with os.fdopen(descriptor, errors="replace") as file:
            raise Occupied(directory, file.read()) from None
    before = os.pread(descriptor, _LONGEST_OWNER, 0).decode(errors="replace")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode(), 0)
    return descriptor, before


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turns the system's error for a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFull(f"{directory} became full while a version was written to it") from error

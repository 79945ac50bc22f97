"""The kernel that ci/rdma-vm boots: Debian's, downloaded once, unpacked, never installed."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.stages import StageFailed, cache_folder, must, run, stage, tail

# Modules that the guest needs before it has a root file system; it loads the rest from there.
BOOT_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
# Folders of modules to keep: for networks, RDMA and virtual machines (70 of 400 MB).
_KEPT = (
    *("arch", "crypto", "drivers/char", "drivers/infiniband", "drivers/virtio", "lib", "net"),
    *("fs/9p", "fs/configfs", "fs/fscache", "fs/netfs", "fs/overlayfs"),
)
_META_PACKAGE = "linux-image-amd64"
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Kernel:
    """An unpacked kernel in the cache."""

    folder: Path

    @property
    def version(self) -> str:
        return self.folder.name

    @property
    def image(self) -> Path:
        return self.folder / "kernel"

    @property
    def modules(self) -> Path:
        return self.folder / "lib" / "modules" / self.version


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def cached(cache: Path) -> Kernel | None:
    """Returns the newest kernel in the cache. A folder with its final name is complete."""
    found = [path.parent for path in cache.glob("[0-9]*/kernel")]
    newest = max(found, key=lambda path: _numbers(path.name), default=None)
    return Kernel(newest) if newest else None


def kernel() -> Kernel:
    """Returns the cached kernel, or else the current one of the Debian archive.

    Raises StageFailed if there is none.
    """
    cache = cache_folder("rdma-vm")
    found = cached(cache)
    if found:
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with stage("Debian's kernel (once)"), tempfile.TemporaryDirectory(dir=cache) as scratch:
            return publish(_fetch_by_new_lists(Path(scratch)), cache)
    except OSError as error:
        raise StageFailed(f"the guest's kernel cannot be kept in {cache}: {error}") from error


def _fetch_by_new_lists(scratch: Path) -> Kernel:
    """Fetches the kernel; as root, updates apt's package lists if they are missing or old."""
    try:
        return _fetch(scratch)
    except StageFailed:
        if os.geteuid() != 0:
            raise
    must(run(["apt-get", "update"], "vm-apt-update"))
    return _fetch(scratch)


def publish(made: Kernel, cache: Path) -> Kernel:
    """Moves a complete kernel to its place, or uses the one of a program that was faster."""
    place = cache / made.version
    try:
        made.folder.rename(place)
    except OSError:
        if not (place / "kernel").exists():
            raise
    return Kernel(place)


def package_of(listing: str) -> str:
    """Returns the kernel's package, from the output of `apt-cache depends` for its meta-package."""
    found = re.search(r"Depends: (linux-image-\d\S*)", listing)
    if not found:
        raise StageFailed(f"apt knows no package {_META_PACKAGE}; the guest's kernel comes from it")
    return found[1]


def _package() -> str:
    for tool in ("apt-cache", "apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise StageFailed(f"there is no {tool}, with which the guest's kernel is fetched")
    listing = run(["apt-cache", "depends", _META_PACKAGE], "vm-kernel-name")
    return package_of(listing.log.read_text())


def _fetch(scratch: Path) -> Kernel:
    name = _package()
    # As root, apt downloads as another user, who may not write here.
    download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", name]
    outcome = run(download, "vm-kernel-download", cwd=scratch)
    archives = list(scratch.glob("*.deb"))
    if not outcome.ok or len(archives) != 1:
        raise StageFailed(f"{name} could not be downloaded:\n{tail(outcome.log, 5)}")
    unpacked = scratch / "unpacked"
    must(run(["dpkg-deb", "-x", archives[0], unpacked], "vm-kernel-unpack"))
    version = name.removeprefix("linux-image-")
    made = Kernel(scratch / version)
    made.modules.mkdir(parents=True)
    _keep_modules(unpacked / "lib" / "modules" / version, made.modules)
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    depmod: list[str | Path] = ["depmod", "-b", made.folder, version]
    must(run(depmod, "vm-kernel-depmod", env={"PATH": path}))
    image = (unpacked / "boot" / f"vmlinuz-{version}").read_bytes()
    made.image.write_bytes(uncompressed(image))
    return made


def _keep_modules(source: Path, target: Path) -> None:
    for folder in _KEPT:
        shutil.move(source / "kernel" / folder, target / "kernel" / folder)
    drivers = target / "kernel" / "drivers" / "net"
    drivers.mkdir()
    for module in (source / "kernel" / "drivers" / "net").glob("*.ko*"):
        shutil.move(module, drivers)
    for text in source.glob("modules.*"):
        shutil.move(text, target)


def uncompressed(image: bytes) -> bytes:
    """Extracts the kernel from an image with xz in it; returns other images unchanged.

    QEMU boots both. Decompression in an emulated guest costs 4 s.
    """
    start = image.find(_XZ)
    while start >= 0:
        try:
            inside = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[start:])
        except lzma.LZMAError:
            inside = b""
        if inside.startswith(_ELF):
            return inside
        start = image.find(_XZ, start + 1)
    return image


def load_order(dependencies: str, names: Iterable[str]) -> list[str]:
    """Returns the paths of modules, each after those that it needs, from the text of modules.dep.

    Raises StageFailed for an unknown name.
    """
    needs = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[Path(path).name.partition(".")[0].replace("-", "_")] = (path, rest.split())
    order: dict[str, None] = {}
    for name in names:
        if name not in needs:
            raise StageFailed(f"the guest's kernel has no module {name}")
        path, wanted = needs[name]
        # depmod lists the nearest dependency first.
        order |= dict.fromkeys([*reversed(wanted), path])
    return list(order)


def _entry(name: str, content: bytes, mode: int, number: int) -> bytes:
    """Returns one file of a cpio archive in the "newc" format, which the kernel unpacks."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def cpio(folders: Iterable[str], files: dict[str, bytes]) -> bytes:
    """Returns an archive of empty folders and executable files."""
    entries = [(name, b"", 0o040755) for name in folders]
    entries += [(name, content, 0o100755) for name, content in files.items()]
    entries.append(("TRAILER!!!", b"", 0))
    return b"".join(
        _entry(name, content, mode, number) for number, (name, content, mode) in enumerate(entries)
    )


def initramfs(of: Kernel, init: Path, busybox: Path = Path("/bin/busybox")) -> bytes:
    """Returns the guest's first file system: busybox, `init`, and the modules that `init` loads."""
    order = load_order((of.modules / "modules.dep").read_text(), BOOT_MODULES)
    files = {"init": init.read_bytes(), "bin/busybox": busybox.read_bytes()}
    for number, path in enumerate(order):
        files[f"modules/{number:02}-{Path(path).name}"] = (of.modules / path).read_bytes()
    folders = ("bin", "modules", "proc", "sys", "dev", "host", "top", "new")
    return cpio(folders, files)

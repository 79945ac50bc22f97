"""``ringcoll store``: looks into stores, fills them, serves and mounts them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ringcoll.errors import InvalidArgument
from ringcoll.info import wide_console
from ringcoll.weights.mount_cli import add_mount_parser
from ringcoll.weights.tables_cli import add_tables_parser

if TYPE_CHECKING:
    from ringcoll.weights.source import StagedTensor
    from ringcoll.weights.store import Store

_LONG_S = 86400.0

_EPILOG = """\
ADDRESS is what the store tells its guests: ringcoll://10.0.0.5:4711/weights. The key is read from
the file of --key-file, or else from the environment variable RINGCOLL_KEY.
"""


def add_parser(commands: Any) -> None:
    """Adds ``store`` and its own commands."""
    parser = commands.add_parser(
        "store",
        help="weights and parameter tables: tensors that other processes use",
        description="Stores: versions of named tensors, and parameter tables, in the memory of "
        "several processes.",
        epilog=_EPILOG,
    )
    parts = parser.add_subparsers(dest="part", metavar="COMMAND", required=True)

    def add(name: str, run: Any, what: str) -> argparse.ArgumentParser:
        part: argparse.ArgumentParser = parts.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=_EPILOG
        )
        part.set_defaults(run=run)
        return part

    listing = add("ls", _ls, "list the versions of a store, or the tensors of one version")
    _take_address(listing)
    listing.add_argument("--version", type=_version, help="list the tensors of this version")
    listing.add_argument("--json", action="store_true", help="print JSON")

    get = add("get", _get, "read a version, or one tensor, into a file")
    _take_address(get)
    get.add_argument("name", nargs="?", help="a tensor, written as .npy (default: all tensors)")
    get.add_argument("--version", type=_version, default="latest", help="(default: latest)")
    get.add_argument("--out", type=Path, required=True, help="a .safetensors or .npy file")

    put = add("put", _put, "commit files as a new version, which has nothing else")
    _take_address(put)
    put.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".safetensors or .npy")
    put.add_argument("--metadata", type=_metadata, default={}, help="JSON, such as '{\"step\": 7}'")

    watch = add("watch", _watch, "print the number of each new version")
    _take_address(watch)
    watch.add_argument("--path", type=Path, help="keep the versions as files in this directory")
    watch.add_argument("--count", type=int, help="end after so many versions")

    serve = add("serve", _serve, "hold versions: of a new store, or beside the holders of one")
    serve.add_argument("name", help="the name of a new store, or the ADDRESS of one to join")
    _take_key(serve)
    serve.add_argument("--port", type=int, default=0, help="where guests come (default: any)")
    serve.add_argument("--replicas", type=int, help="further copies of each tensor")
    serve.add_argument("--keep", type=int, default=2, help="versions kept (default: 2)")
    serve.add_argument("--path", type=Path, help="keep the versions as files in this directory")
    serve.add_argument("--restore", type=Path, metavar="FILE", help="begin with this .safetensors")

    add_tables_parser(add, _opened, _take_address)
    add_mount_parser(parts, _mounted, _take_address)


# ---- Arguments ----


def _take_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="a file with the key")
    parser.add_argument(
        "--open-timeout", type=float, default=10.0, metavar="S", help="seconds (default: 10)"
    )


def _take_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("address", metavar="ADDRESS", help="ringcoll://host:port/name")
    _take_key(parser)


def _version(text: str) -> int | str:
    return text if text == "latest" else int(text)


def _metadata(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _key(args: argparse.Namespace) -> str:
    if args.key_file is not None:
        try:
            return str(args.key_file.read_text().strip())
        except OSError as error:
            raise InvalidArgument(f"--key-file {args.key_file}: {error.strerror}") from None
    key = os.environ.get("RINGCOLL_KEY", "")
    if not key:
        raise InvalidArgument("no key: set RINGCOLL_KEY, or pass --key-file")
    return key


@contextmanager
def _opened(args: argparse.Namespace, **options: Any) -> Iterator[Store]:
    """The store at an address, for a guest."""
    import ringcoll

    address: str = getattr(args, "address", None) or args.name
    guest = ringcoll.connect(address, _key(args), args.open_timeout)
    with guest, ringcoll.Store(address.rpartition("/")[2], guest, **options) as store:
        yield store


# ---- Commands ----


def _ls(args: argparse.Namespace) -> int:
    with _opened(args) as store:
        if args.version is None:
            _list_versions(store, args.json)
        else:
            _list_tensors(store, args.version, args.json)
    return 0


def _list_versions(store: Store, as_json: bool) -> None:
    versions = store.versions()
    if as_json:
        print(json.dumps([each._asdict() for each in versions]))
        return
    table = Table("version", "committed", "tensors", "size", "holders", "metadata", box=None)
    for each in versions:
        committed = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time))
        lost = f" ({len(each.unreadable)} unreadable)" if each.unreadable else ""
        metadata = json.dumps(each.metadata) if each.metadata else ""
        row = [str(each.number), committed, f"{each.names}{lost}", decimal(each.bytes)]
        table.add_row(*row, str(len(each.holders)), metadata)
    wide_console().print(table)


def _list_tensors(store: Store, version: int | str, as_json: bool) -> None:
    names = store.names(version)
    if as_json:
        print(json.dumps({name: [dtype, list(shape)] for name, (dtype, shape) in names.items()}))
        return
    table = Table("tensor", "type", "shape", box=None)
    for name, (dtype, shape) in sorted(names.items()):
        table.add_row(name, dtype, " x ".join(map(str, shape)) or "scalar")
    wide_console().print(table)


def _get(args: argparse.Namespace) -> int:
    import numpy

    from ringcoll.weights import archive

    with _opened(args) as store, store.lease(args.version) as version:
        if args.name is not None:
            with args.out.open("wb") as file:
                numpy.save(file, store.get(args.name, version))
        else:
            size = next(each.bytes for each in store.versions() if each.number == version)
            with _progress(f"version {version}", size) as advance:
                archive.save(store, args.out, version, _LONG_S, advance)
        print(f"version {version}: {args.out}")
    return 0


def _put(args: argparse.Namespace) -> int:
    from ringcoll.weights import archive
    from ringcoll.weights.incoming import Incoming

    incoming = Incoming()
    try:
        for path in args.files:
            try:
                incoming.add_file(path.name, path.open("rb"))
            except OSError as error:
                raise InvalidArgument(f"{path}: {error.strerror}") from None
        incoming.check()
        tensors = list(incoming.tensors.values())
        with _opened(args) as store, _progress("copying", sum(t.bytes for t in tensors)) as advance:
            counted = [_Counted(each, advance) for each in tensors]
            version = archive.commit(store, counted, incoming.metadata | args.metadata, None)
    finally:
        incoming.close()
    print(version)
    return 0


def _watch(args: argparse.Namespace) -> int:
    with _opened(args, path=args.path) as store:
        newest = max((each.number for each in store.versions()), default=0)
        if newest:
            print(newest, flush=True)
        for count, version in enumerate(store.watch(after=newest), start=1):
            print(version, flush=True)
            if count == args.count:
                break
    return 0


def _serve(args: argparse.Namespace) -> int:
    import ringcoll

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        if "/" in args.name:
            store = stack.enter_context(_opened(args, hold=True, path=args.path))
            info = store.info()
            address = str(info["holders"][info["this"]["id"]]["addresses"][0])
        else:
            key = _key(args)
            agent = stack.enter_context(ringcoll.serve(args.name, key, args.port))
            options: dict[str, Any] = {"replicas": args.replicas, "keep": args.keep}
            options |= {"path": args.path, "key": key, "port": args.port}
            store = stack.enter_context(ringcoll.Store(args.name, agent, **options))
            address = str(store.address)
        if args.restore is not None:
            store.restore(args.restore)
        print(address, flush=True)
        stop.wait()
    return 0


def _mounted(args: argparse.Namespace) -> Any:
    """The source for ``mount``. The store lives as long as the process."""
    from ringcoll.weights.mounted import StoreSource

    stack = ExitStack()
    return StoreSource(stack.enter_context(_opened(args)), stack.close)


# ---- Progress ----


@contextmanager
def _progress(what: str, size: int) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal. Gives a function that takes further bytes."""
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    columns += [DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    console = wide_console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=size)
        yield lambda count: bar.advance(task, count)


class _Counted:
    """A tensor whose bytes are counted while they are read."""

    def __init__(self, tensor: StagedTensor, advance: Any) -> None:
        self._tensor = tensor
        self._advance = advance
        self.name, self.dtype = tensor.name, tensor.dtype
        self.shape, self.bytes = tensor.shape, tensor.bytes

    def read_into(self, out: memoryview, offset: int = 0) -> None:
        self._tensor.read_into(out, offset)
        self._advance(len(out))

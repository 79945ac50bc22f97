"""``ringcoll mount DIR``: versions of a store as files, by FUSE."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringcoll.weights.source import Source

OpenSource = Callable[[argparse.Namespace], Source]

_EPILOG = """\
DIR/17/layer.weight.npy and DIR/17/model.safetensors are those of version 17, and DIR/latest is a
link to the newest version. To commit: write .npy or .safetensors files into a directory
DIR/staging/NAME, and rename it to DIR/NAME. The command runs until DIR is unmounted (umount DIR) or
it is interrupted.
"""


def add_mount_parser(
    subparsers: Any,
    open_source: OpenSource,
    add_arguments: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Adds the command ``mount``. ``add_arguments`` adds those that ``open_source`` wants."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "mount",
        help="mount the versions of a store as files",
        description="Mounts the versions of a store as files, by FUSE.",
        epilog=_EPILOG,
    )
    add_arguments(parser)
    add = parser.add_argument
    add("directory", type=Path, metavar="DIR", help="an empty directory")
    add("--allow-other", action="store_true", help="other users may read, too")
    add(
        "--staging",
        type=Path,
        metavar="PATH",
        help="existing directory for the files of DIR/staging (default: in memory)",
    )
    add(
        "--timeout",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="seconds after which a read is an error if the store does not answer (default: 5)",
    )
    add(
        "--commit-timeout",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="the same for a commit (default: 600)",
    )
    add("--threads", type=_threads, default=8, help="requests served at a time (default: 8)")
    parser.set_defaults(run=run_mount, open_source=open_source)


def run_mount(args: argparse.Namespace) -> int:
    """Serves until the directory is unmounted, and returns the exit status."""
    # Imported here, since no other command needs it, and mfusepy is optional.
    from ringcoll.weights.fuse.mount import Options, serve

    logging.basicConfig(format="ringcoll mount: %(message)s", level=logging.INFO)
    options = Options(
        allow_other=args.allow_other,
        staging=args.staging,
        timeout_s=args.timeout,
        commit_timeout_s=args.commit_timeout,
        threads=args.threads,
    )
    serve(args.open_source(args), args.directory, options, _say)
    return 0


def _say(point: Path) -> None:
    """One line on standard output says that the files can be used."""
    print(f"mounted at {point}")
    sys.stdout.flush()


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a positive number of seconds")
    return value


def _threads(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 256:
        raise argparse.ArgumentTypeError("must be 1 to 256")
    return value

"""The command `ringcoll horovod build | install`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .anchored import EditError
from .builder import BuildError, Options, build, export, install
from .installed import find_installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `ringcoll horovod`."""
    parser.add_argument(
        "action",
        choices=["build", "install"],
        help="build: make a wheel and print its path; install: also install it for this Python",
    )
    parser.add_argument(
        "--jobs", type=int, default=0, help="compilers at a time (default: one per CPU)"
    )
    parser.add_argument("--without-torch", action="store_true", help="build without torch")
    parser.add_argument(
        "--without-tensorflow", action="store_true", help="build without TensorFlow"
    )
    parser.add_argument("--without-mpi", action="store_true", help="build without MPI")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="only with build: directory for a wheel that other machines can install; the command "
        "also prints what those machines need",
    )
    parser.add_argument(
        "--force", action="store_true", help="build even if the cache has the wheel"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status."""
    if args.output and args.action != "build":
        print(
            "ringcoll horovod install: --output works only with build. Build the wheel, and "
            "install it by pip",
            file=sys.stderr,
        )
        return 2
    options = Options(
        jobs=args.jobs,
        torch=not args.without_torch,
        tensorflow=not args.without_tensorflow,
        mpi=not args.without_mpi,
        force=args.force,
    )
    try:
        if args.output:
            return _export(options, args.output)
        wheel = install(options) if args.action == "install" else build(options)
    except (BuildError, EditError) as error:
        print(f"ringcoll horovod {args.action}: {error}", file=sys.stderr)
        return 1
    installed = find_installed()
    if args.action == "install" and installed:
        print(f"installed Horovod {installed.version} with the backend RINGCOLL")
    else:
        print(wheel)
    return 0


def _export(options: Options, output: Path) -> int:
    wheel, needs = export(options, output)
    print(wheel)
    for line in needs:
        print(f"  {line}")
    print("  ringcoll, which has a wheel of its own")
    return 0


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Adds `horovod` to the commands of ringcoll."""
    parser = subparsers.add_parser(
        "horovod",
        help="build or install Horovod with the backend RINGCOLL",
        description="Builds Horovod 0.28.1 with the backend RINGCOLL for the installed torch and "
        "TensorFlow. The wheel is kept in a cache, and later runs take it from there.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run, func=run)
    return parser

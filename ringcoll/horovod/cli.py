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
        help="build: make the wheel and say where it is. install: and install it for this Python",
    )
    parser.add_argument("--jobs", type=int, default=0, help="compilers at a time (default: CPUs)")
    parser.add_argument("--without-torch", action="store_true", help="leave torch out")
    parser.add_argument("--without-tensorflow", action="store_true", help="leave TensorFlow out")
    parser.add_argument("--without-mpi", action="store_true", help="leave MPI out")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="of build: for the wheel, to be installed on other machines; what they need is said",
    )
    parser.add_argument("--force", action="store_true", help="build even if it was built before")


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns the exit status."""
    if args.output and args.action != "build":
        print(
            "ringcoll horovod install: --output is of build; install the wheel by pip",
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
    print("  ringcoll, from a wheel of its own")
    return 0


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Adds `horovod` to the commands of ringcoll."""
    parser = subparsers.add_parser(
        "horovod",
        help="build or install Horovod with the backend RINGCOLL",
        description="Builds Horovod 0.28.1 with the backend RINGCOLL for the torch and TensorFlow "
        "that are installed, once; later runs find the wheel in the cache.",
    )
    add_arguments(parser)
    parser.set_defaults(run=run, func=run)
    return parser

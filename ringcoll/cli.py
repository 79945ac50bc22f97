"""The command ``ringcoll``: doctor, probe, info, compare, simulate, store, horovod, completion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ringcoll import __version__, compare, completion, doctor, info, simulate
from ringcoll.errors import Error
from ringcoll.horovod import cli as horovod
from ringcoll.probe import cli as probe
from ringcoll.weights import cli as store


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands. Each command sets ``run``, a function that takes the arguments
    and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="ringcoll",
        description="Collective communication over shared memory, RDMA and TCP. Each command has "
        "its own --help.",
    )
    parser.add_argument("--version", action="version", version=f"ringcoll {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    doctor.add_parser(commands)
    probe.add_parser(commands)
    info.add_parser(commands)
    compare.add_parser(commands)
    simulate.add_parser(commands)
    store.add_parser(commands)
    horovod.add_parser(commands)
    completion.add_parser(commands, make_parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. 0: success. 1: failure, with the reason on
    standard error. 2: bad arguments. 130: interrupted."""
    parsed = make_parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except Error as error:
        print(f"ringcoll {parsed.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"ringcoll {parsed.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the pipe, such as head, has ended
        sys.stderr.close()
        return 0

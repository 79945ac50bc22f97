"""``ringcoll completion``: prints a script by which a shell completes ringcoll's command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

SHELLS = {
    "bash": 'put eval "$(ringcoll completion bash)" into ~/.bashrc',
    "zsh": "write the output to a file _ringcoll in a folder of $fpath",
    "tcsh": "write the output to a file, and source that file in ~/.tcshrc",
}


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    whole: Callable[[], argparse.ArgumentParser],
) -> None:
    """``whole`` makes the parser of all commands. The shell completes its words."""
    parser = commands.add_parser(
        "completion",
        help="print a script with which a shell completes ringcoll's command line",
        description="Prints a script with which a shell completes ringcoll's command line.",
        epilog="; ".join(f"{shell}: {how}" for shell, how in SHELLS.items()),
    )
    parser.add_argument("shell", choices=list(SHELLS), help="the shell that runs the script")
    parser.set_defaults(run=lambda arguments: run(arguments, whole()))


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    import shtab  # imported here, since no other command needs it

    for action in _actions(parser):
        if action.metavar in ("FILE", "DIR"):
            kind = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The actions of a parser and of the parsers of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)

"""Options of the commands that run under a launcher."""

from __future__ import annotations

import argparse

from ringcoll.environment import find_job
from ringcoll.errors import Error


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--wait",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long rank 0 waits for the other ranks of a job (default 30)",
    )
    parser.add_argument(
        "--limit",
        type=positive_seconds,
        default=120.0,
        metavar="SECONDS",
        help="the time after which no further pair of hosts is examined (default 120)",
    )


def positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def is_another_rank() -> bool:
    """Whether this is a rank other than 0. Used if the job has no store: then only rank 0 reports
    it."""
    try:
        return find_job(store="local://none").rank != 0
    except Error:
        return False

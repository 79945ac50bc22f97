"""The command line of ci/soak: which jobs, for how long, and what is printed of them."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from support import hosts
from support.soak import fake
from support.soak.generate import PROFILES
from support.soak.job import TRANSPORTS, Job, Result
from support.soak.script import Plan

_MOST_RANKS = 8


@dataclass
class Tally:
    """What all jobs together came to."""

    passed: int = 0
    steps: int = 0
    failed: list[Result] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.kinds[f"{result.plan.transport} {result.plan.profile}"] += 1
        self.steps += result.plan.steps * result.plan.laps
        if result.failure:
            self.failed.append(result)
        else:
            self.passed += 1


def _parser(about: str) -> argparse.ArgumentParser:
    lines = about.strip().splitlines()
    parser = argparse.ArgumentParser(
        prog="ci/soak", description=lines[0], epilog=" ".join(lines[1:]).strip()
    )
    add = parser.add_argument
    add("--seed", type=int, default=1, help="of the first job; each has one more (%(default)s)")
    add("--jobs", type=int, metavar="N", help="how many; without --minutes 20")
    add("--minutes", type=float, metavar="M", help="begin jobs for as long")
    add("--transport", nargs="+", choices=TRANSPORTS, default=["shm", "tcp", "mixed"])
    add("--profile", nargs="+", choices=list(PROFILES), default=list(PROFILES))
    add("--size", type=int, choices=range(1, _MOST_RANKS + 1), metavar="RANKS", help="2 to 8")
    add("--steps", type=int, default=80, metavar="N", help="of a script (%(default)s)")
    add("--laps", type=int, metavar="N", help="times that a script is played; memory is measured")
    add("--patience", type=float, default=60, metavar="S", help="a job without a step hangs")
    add("--keep-going", action="store_true", help="go on after a failure")
    return parser


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    """Without end. What is not given follows from the seed, so that it can be given as it was."""
    seed = options.seed
    while True:
        rng = Random(seed)
        transport = rng.choice(options.transport)
        profile = rng.choice(options.profile)
        size = options.size or rng.choices(range(2, _MOST_RANKS + 1), [4, 5, 5, 2, 1, 1, 1])[0]
        # Who has lost ranks cannot do the same again.
        laps = 1 if "die" in PROFILES[profile] else (options.laps or rng.choice([1, 1, 6]))
        yield Plan(seed, size, transport, profile, options.steps, laps)
        seed += 1


def main(words: Sequence[str], about: str) -> int:
    options = _parser(about).parse_args(words)
    console = Console()
    for transport, missing in (("namespaces", hosts.missing), ("fake", fake.missing)):
        if transport in options.transport and (reason := missing()):
            console.print(f"ci/soak: --transport {transport}: {reason}")
            return 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # leave nothing behind then either
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    tally = soak(options, console)
    for result in tally.failed:
        console.print(f"failed: {result.command()}", markup=False, highlight=False, soft_wrap=True)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(tally.kinds.items()))
    console.print(
        f"{tally.passed} jobs passed, {len(tally.failed)} failed, {tally.steps} steps: {kinds}",
        highlight=False,
        soft_wrap=True,
    )
    return 1 if tally.failed else 0


def soak(options: argparse.Namespace, console: Console) -> Tally:
    """Runs jobs one after the other until there were enough, or one has failed."""
    seconds = options.minutes * 60 if options.minutes else None
    jobs = options.jobs or (20 if seconds is None else None)
    tally = Tally()
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Refreshed by hand: a thread that draws would be in the way of fork().
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=jobs or seconds)
        for number, plan in enumerate(plans(options)):
            passed = time.monotonic() - start
            if (jobs is not None and number >= jobs) or (seconds is not None and passed > seconds):
                break
            done = number if jobs is not None else passed
            what = f"{plan.transport} {plan.profile}, {plan.size} ranks, seed {plan.seed}"
            progress.update(task, completed=done, description=what, refresh=True)
            result = Job(plan, options.patience).run()
            tally.add(result)
            if result.failure:
                _print(progress.console, result)
                if not options.keep_going:
                    break
    return tally


def _print(console: Console, result: Result) -> None:
    for text in (
        f"FAILED after {result.seconds:.1f} s: {result.failure}",
        result.details,
        f"again: {result.command()}",
    ):
        console.print(text, markup=False, highlight=False, soft_wrap=True)

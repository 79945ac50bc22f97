#!/usr/bin/env python3
"""Times one-sided reads and writes, and the store of weights, beside NIXL, Mooncake, torch's RPC
and TensorFlow's gRPC; memcpy and the wire are the limits.

On one host, and between hosts that are namespaces joined by links of a chosen rate (these need
root). Writes perf/results/weights-<machine>.json, .md and .svg. perf/README.md says what is
measured and how.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import build, figures, machine, one_sided, program, rounds, store_runs, weights_report
from harness.figures import MIB, OURS
from harness.jobs import JobError, end_on_sigterm
from harness.one_sided import PEERS, Settings
from harness.places import ONE_HOST, Pythons
from harness.store_runs import STORE, Missing, Setting
from harness.weights_report import Results
from support import hosts

METHOD = """\
A user copies from (read) and to (write) memory of an owner, each a process with one thread that
calls, by each library's Python interface. A time is that of a batch of calls, back to back and one
at a time, divided by the calls: the median batch of a visit, the median over rounds. Every round
visits each library in turn. Meanwhile the others idle, and those whose threads poll are stopped. In
brackets: the median over rounds of another's time over that of `ringcoll` in the same round; above
1, ringcoll is faster. Buffers are memory that was used before, and stay the same. What came is
compared with what was sent once for each size.

`ringcoll`: the owner's memory is of ringcoll.empty. `plain memory`: it is the caller's, on one
host. `TCP`: on one host, both take each other for another host's. memcpy: NumPy's copy between two
buffers of one process. NIXL's transfers are prepared once for each size. torch and TensorFlow make
new tensors of what they read; TensorFlow copies at most 64 MiB in one tensor. A read of several
tensors, such as a state dict, is one call for all of them; all bytes lie in one registered region,
or in torch and TensorFlow in as many tensors.

Two hosts are network namespaces of this machine, which share its processors. Their links are shaped
to the rate that is named, in each direction. Frames have 9000 bytes, and headers, 0.7 % of them,
count as nothing. The shaper passes the first 256 KB after a pause at full speed, so that sizes up
to 1 MiB may be faster than the wire. A shared read takes its bytes from all owners; their links are
shaped, that of the user is not.

The store has one trainer, which holds the versions, and one guest that follows. The state dict is
bfloat16 of random bits, of which 1 % change at random before a commit. memcpy: the trainer copies
its state dict to other memory, tensor by tensor. commit: put_state_dict and commit(wait=True). The
first commits take new pages from the system, and are not counted among those that follow. The pause
of commit(wait=False) is that of put_state_dict, commit and Pending.copied() in a pass that computes
for four times as long as a commit takes; the other processor is free for the library's thread.
get_state_dict reads to tensors that exist, whose pages were used before. With since= the guest has
the version before the newest, and the library reads as a whole what is cheaper so, as on one host.

Files are on tmpfs, on the trainer's host; huge pages: mounted with huge=within_size. The guest maps
them and copies their tensors, for the first time in its process, and once more. Beside them: a
memcpy of as many bytes. npy: a file for each tensor, by np.load(mmap_mode="r"), which first reads
the head of the file to buffers of two pages. safetensors: one file, by mmap. The mount is on the
trainer's host too. Cold: nobody has read the version's file, so that each byte goes through FUSE;
it is read in blocks of 1 MiB."""
COPIES, HOSTS, SHARES, COMMITS, DELTAS, FILES = (
    "copies",
    "hosts",
    "shares",
    "commits",
    "deltas",
    "files",
)
PARTS = {
    COPIES: "one-sided copies on one host",
    HOSTS: "the same between two hosts, at each of --rates",
    SHARES: "reads shared by owners, at the first of --rates",
    COMMITS: "the store on one host: commit and get",
    DELTAS: "the store between two hosts, at each of --rates: get, whole and since",
    FILES: "the store's files on one host: mapped, and mounted",
}
NEED_HOSTS = (HOSTS, SHARES, DELTAS)


def parse_arguments() -> argparse.Namespace:
    parts = "; ".join(f"{name}: {text}" for name, text in PARTS.items())
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=f"Parts: {parts}."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="two sizes, two rounds, 4 MiB: a smoke test")
    add("--parts", default=",".join(PARTS), help="default %(default)s")
    add("--peers", help=f"comma-separated, of: {', '.join(PEERS)}; default all")
    add("--rates", default="1gbit,10gbit", help="of links; default %(default)s")
    add("--sizes", help="comma-separated, such as 4K,64KiB,16M; default 4 KiB to 256 MiB")
    add("--owners", type=int, default=3, help="that share a read, at most; default %(default)s")
    add("--rounds", type=int, help="default 7")
    add("--visit", type=float, help="seconds of one visit, default 0.2")
    add("--size-limit", type=float, default=40, help="seconds after which a size has no new round")
    add("--store-mib", type=int, help="of the state dict; default 1024")
    add("--store-rounds", type=int, help="default 5")
    add("--tensors", type=int, default=store_runs.TENSORS, help="default %(default)s")
    add("--peers-python", type=Path, help="a Python that has peers which the one in use has not")
    add("--install-peers", action="store_true", help="NIXL and Mooncake from PyPI, into --build")
    add("--build", type=Path, default=build.CHECKOUT / "build/perf")
    add("--name", default="weights", help="what the files are called; default %(default)s")
    add("--output", type=Path, default=build.PERF / "results", help="a directory")
    arguments = parser.parse_args()
    _set_defaults(arguments)
    try:
        _check(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _set_defaults(arguments: argparse.Namespace) -> None:
    quick = arguments.quick
    arguments.rounds = arguments.rounds or (2 if quick else 7)
    arguments.visit = arguments.visit or (0.02 if quick else 0.2)
    arguments.store_rounds = arguments.store_rounds or (2 if quick else 5)
    arguments.store_mib = arguments.store_mib or (4 if quick else 1024)
    arguments.tensors = min(arguments.tensors, 8) if quick else arguments.tensors
    arguments.names = arguments.peers.split(",") if arguments.peers else list(PEERS)
    arguments.parts = [word for word in arguments.parts.split(",") if word]
    arguments.rates = [word for word in arguments.rates.split(",") if word]


def _check(arguments: argparse.Namespace) -> None:
    """Raises ValueError."""
    for option, words, known in (
        ("--parts", arguments.parts, PARTS),
        ("--peers", arguments.names, PEERS),
    ):
        for word in words:
            if word not in known:
                raise ValueError(f'{option}: "{word}" is none of {", ".join(known)}')
    try:
        for rate in arguments.rates:
            hosts.bits_per_second(rate)
    except hosts.HostsError as error:
        raise ValueError(f"--rates: {error}") from None
    if not arguments.rates:
        raise ValueError("--rates names none")
    sizes = one_sided.QUICK_SIZES if arguments.quick else one_sided.SIZES
    if arguments.sizes:
        sizes = [figures.parse_size(word) for word in arguments.sizes.split(",") if word]
    arguments.sizes = sizes


def pythons(arguments: argparse.Namespace) -> Pythons:
    """The Python in use, and the one that has the peers."""
    folder = arguments.build.resolve() / "peers-weights"
    if arguments.install_peers and not folder.exists():
        rounds.progress("install NIXL and Mooncake")
        one_sided.install(folder)
    return Pythons.of(arguments.peers_python or folder / "bin/python")


def measure_copies(arguments: argparse.Namespace, found: Pythons, results: Results) -> None:
    settings = Settings(
        found,
        arguments.names,
        arguments.sizes,
        arguments.rounds,
        arguments.visit,
        arguments.size_limit,
        arguments.build / "logs",
        arguments.tensors,
        arguments.store_mib * MIB,
    )

    def note(versions: dict[str, str], missing: dict[str, str]) -> None:
        results.peers |= versions
        results.missing |= missing
        for peer, reason in missing.items():
            rounds.progress(f"  without {peer}: {reason}")

    places = [ONE_HOST] if COPIES in arguments.parts else []
    places += arguments.rates if HOSTS in arguments.parts else []
    for rate in places:
        with _noted(f"one-sided copies, {rate or 'one host'}", results):
            for copies in one_sided.measure(rate, settings, note):
                results.copies.append(copies)
                place = f"{copies.what}, {copies.place}"
                results.failures += [f"{place}: {text}" for text in copies.results.failures]
    if SHARES in arguments.parts:
        with _noted("shared reads", results):
            owners = arguments.owners
            shares, failures = one_sided.measure_shares(arguments.rates[0], owners, settings)
            results.shares.append(shares)
            results.failures += [f"shared reads: {text}" for text in failures]


def measure_store(arguments: argparse.Namespace, found: Pythons, results: Results) -> None:
    stored = results.stored
    stored.tensors, stored.bytes = arguments.tensors, arguments.store_mib * MIB
    logs = arguments.build / "logs"
    setting = Setting(found, logs, arguments.store_rounds, stored.tensors, stored.bytes)
    if COMMITS in arguments.parts:
        with _noted(STORE, results):
            store_runs.measure_commits(setting, stored)
    for rate in arguments.rates if DELTAS in arguments.parts else ():
        with _noted(f"{STORE} between hosts at {rate}", results):
            store_runs.measure_deltas(rate, setting, stored)
    for pages in store_runs.PAGES if FILES in arguments.parts else ():
        with _noted(f"files of the store on {pages}", results):
            store_runs.measure_files(pages, setting, stored)
    if FILES in arguments.parts:
        with _noted(store_runs.MOUNT, results):
            store_runs.measure_mount(setting, stored)


@contextmanager
def _noted(what: str, results: Results) -> Iterator[None]:
    """Reports what could not be measured. The rest is measured all the same."""
    try:
        yield
    except Missing as reason:
        results.missing[what] = str(reason)
        rounds.progress(f"  without {what}: {reason}")
    except (JobError, hosts.HostsError, OSError, subprocess.SubprocessError) as error:
        results.failures.append(f"{what}: {error}")
        rounds.progress(f"  NOT MEASURED: {what}: {error}")


def measure(arguments: argparse.Namespace, results: Results) -> None:
    found = pythons(arguments)
    if reason := hosts.missing():
        for part in [part for part in arguments.parts if part in NEED_HOSTS]:
            arguments.parts.remove(part)
            results.missing[part] = reason
            rounds.progress(f"  without {part}: {reason}")
    if ours := found.find(PEERS[OURS]):
        results.peers[OURS] = ours[1]
    measure_copies(arguments, found, results)
    measure_store(arguments, found, results)


def main() -> int:
    # This directory has a horovod.py, which must not be taken for the package.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != build.PERF]
    arguments = parse_arguments()
    end_on_sigterm()
    (arguments.build / "logs").mkdir(parents=True, exist_ok=True)
    results = Results("Weights", METHOD, machine.describe())
    try:
        return program.measure_and_write(
            results,
            lambda: measure(arguments, results),
            arguments.output,
            arguments.name,
            quick=arguments.quick,
            form=weights_report,
        )
    except build.BuildError as error:
        print(f"perf/weights.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

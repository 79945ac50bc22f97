"""Runs commands as stages: one printed line each, a log file each, and nothing left running.

The driver makes itself the reaper of its descendants (prctl), so that a process whose parent has
died, such as a rank of a killed launcher, is still found and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent.parent
LOGS = ROOT / "build" / "log"
VENV = ROOT / ".venv"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Commands that run() waits for, in whatever thread: they are no leftovers. Under the lock, none has
# begun that is not in the set.
_waited_for: set[int] = set()
_beginning = threading.Lock()
_forking = threading.Lock()  # held from before fork() until all that is called after it has been
_must_finish: set[int] = set()  # of those
_stopping = threading.Event()  # no command begins any more


class StageFailed(Exception):
    """A stage that later ones need did not succeed; the text says which and where its log is."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: exit status (negative: a signal; None: it ran past its limit)."""

    status: int | None
    seconds: float
    log: Path

    @property
    def ok(self) -> bool:
        return self.status == 0

    def reason(self) -> str:
        if self.status is None:
            return f"stopped at its limit of {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name}"
        return f"exit status {self.status}"


def say(text: str) -> None:
    print(text, flush=True)


def cache_folder(name: str) -> Path:
    """What outlives the checkout, by XDG's rule."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ringcoll" / name


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, indented, for a failure's report."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join("    | " + line for line in text)


def in_background(command: Sequence[str | Path]) -> list[str | Path]:
    """The same command, for run(), with what others leave of the processors.

    Each command of run() is a session, to which the kernel gives a share of its own where it has
    autogroups (sched(7)): how nice a process is counts within its session alone.
    """
    nicely = 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"'
    return ["sh", "-c", nicely, "sh", *command]


@contextlib.contextmanager
def stage(title: str) -> Iterator[None]:
    """Prints `title`, and behind it the time that the body took, or that it failed."""
    print(f"{title} ...", end=" ", flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say("failed")
        raise
    say(f"{time.monotonic() - start:.0f} s")


def run(
    command: Sequence[str | Path],
    log: str,
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float = 1800,
    cwd: Path = ROOT,
    finish: bool = False,
) -> Outcome:
    """Runs a command with its output in build/log/<log>.log.

    At its limit it is ended, with all that it started. If this program is stopped meanwhile, main()
    ends the command; one that must `finish`, such as apt, is waited for instead.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{log}.log"
    start = time.monotonic()
    with path.open("wb") as output:
        output.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        output.flush()
        with _beginning:
            if _stopping.is_set():
                raise StageFailed(f"{log}: not begun, for the program ends")
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
            _waited_for.add(child.pid)
            if finish:
                _must_finish.add(child.pid)
        try:
            status: int | None = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            status = None
            end(family(child.pid))
            child.wait()
        except BaseException:
            if finish:
                child.wait()
            raise
        finally:
            _waited_for.discard(child.pid)
            _must_finish.discard(child.pid)
    return Outcome(status, time.monotonic() - start, path)


def must(outcome: Outcome) -> Outcome:
    """Raises StageFailed, with the end of the log, unless the command succeeded."""
    if not outcome.ok:
        where = outcome.log.relative_to(ROOT) if outcome.log.is_relative_to(ROOT) else outcome.log
        raise StageFailed(f"{outcome.reason()}; its log is {where}:\n{tail(outcome.log)}")
    return outcome


def _children() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            tree.setdefault(int(fields[1]), []).append(int(entry.name))
    return tree


def family(pid: int, *, itself: bool = True) -> list[int]:
    """A process and its descendants."""
    tree = _children()
    found = [pid]
    for member in found:
        found += tree.get(member, [])
    return found if itself else found[1:]


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_with_parent() -> None:
    """Has the kernel end this process when the thread that has started it ends."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


def name_of(pid: int) -> str:
    """The command line of a process, or "" if it has ended."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return line.decode(errors="replace").strip()[:120]
    return ""


def end_leftovers(grace_s: float = 0, *, all_commands: bool = False) -> list[str]:
    """Ends every descendant of this process that has not ended by itself in `grace_s`.

    Those of commands that run() is waiting for are left alone, but for `all_commands`. Returns the
    command lines of what it ended.
    """
    names: list[str] = []
    deadline = time.monotonic() + grace_s
    while True:
        with _beginning:
            commands = _waited_for.copy()  # each may end meanwhile
            _reap(but=commands)
            found = family(os.getpid(), itself=False)
            at_work = {pid for command in commands for pid in family(command)}
        left = found if all_commands else [pid for pid in found if pid not in at_work]
        if not left:
            return names
        if time.monotonic() >= deadline:
            names += [name for name in map(name_of, left) if name]
            end(left)
        time.sleep(0.05)


def _reap(but: set[int]) -> None:
    """Takes note of children that have ended, `but` for those whose status somebody waits for."""
    for pid in set(_children().get(os.getpid(), [])) - but:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def has_ended(pid: int) -> bool:
    """Where nobody reaps it, it stays as a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _reap_orphans() -> None:
    """Takes note of adopted orphans that end while commands run.

    A PID namespace ends after the last of its processes, and a test may wait for that. Who starts a
    child without run() waits for it at once, so that it is not found twice.
    """
    before: set[int] = set()
    while True:
        time.sleep(0.5)
        children = set(_children().get(os.getpid(), []))
        ended = {pid for pid in children - _waited_for.copy() if has_ended(pid)}
        for pid in ended & before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        before = ended


def _stop(number: int, _frame: FrameType | None) -> None:
    # run() would not know of what it has just begun; and what is raised while modules are told of a
    # fork (os.register_at_fork; logging is one) is printed and forgotten.
    if _beginning.locked() or _forking.locked():
        threading.Timer(0.02, os.kill, [os.getpid(), number]).start()
        return
    _stopping.set()
    # Who is unwinding may have to wait for threads that wait for these.
    for command in _waited_for - _must_finish:
        end(family(command))
    raise SystemExit(128 + number)


def main(body: Callable[[], int]) -> None:
    """Runs `body` as the whole program; its result is the exit status. No process outlives it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        say("warning: orphans of tests cannot be adopted (prctl failed)")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    # Told first before a fork and last after it, where all else has been imported by now.
    os.register_at_fork(
        before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forking.release
    )
    threading.Thread(target=_reap_orphans, daemon=True).start()
    try:
        status = body()
    except StageFailed as failure:
        say(f"\nstopped: {failure}")
        status = 1
    finally:
        _stopping.set()
        end_leftovers(all_commands=True)
    sys.exit(status)

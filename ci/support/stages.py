"""Runs commands as stages: one printed line and one log file each, and no process left behind.

The driver makes itself the reaper of its descendants (prctl). So it also finds and ends a process
whose parent has died, such as a rank of a killed launcher.
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
# Commands that run() waits for in any thread; they are not leftovers. While the lock is held, every
# started command is in the set.
_waited_for: set[int] = set()
_beginning = threading.Lock()
_forking = threading.Lock()  # held from before fork() until the handlers after it have run
_must_finish: set[int] = set()  # subset of _waited_for
_stopping = threading.Event()  # once set, no command is started


class StageFailed(Exception):
    """A necessary stage failed; the message names it and its log."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. `status` is the exit status; negative: a signal; None: it ran past its
    limit."""

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
    """Returns a cache folder that outlives the checkout, as XDG defines it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ringcoll" / name


def tail(log: Path, lines: int = 15) -> str:
    """Returns the end of a log, indented, for an error report."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join("    | " + line for line in text)


def in_background(command: Sequence[str | Path]) -> list[str | Path]:
    """Returns the command wrapped for run(), so that it runs at low priority.

    Each command of run() is a session. If the kernel has autogroups (sched(7)), each session has
    its own share, and `nice` counts only within a session. So the session's group is made nice as
    well.
    """
    nicely = 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"'
    return ["sh", "-c", nicely, "sh", *command]


@contextlib.contextmanager
def stage(title: str) -> Iterator[None]:
    """Prints `title`, then the duration of the body, or that it failed."""
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

    At its limit, the command is ended with all its descendants. If this program is stopped
    meanwhile, main() ends the command; with `finish`, as for apt, the command is waited for
    instead.
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
    """Raises StageFailed with the end of the log, unless the command succeeded."""
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
    """Returns a process and its descendants."""
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
    """Makes the kernel end this process when the thread that started it ends."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


def name_of(pid: int) -> str:
    """Returns the command line of a process, or "" if it has ended."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return line.decode(errors="replace").strip()[:120]
    return ""


def end_leftovers(grace_s: float = 0, *, all_commands: bool = False) -> list[str]:
    """Ends every descendant of this process that does not end by itself in `grace_s`.

    Leaves commands that run() waits for alone, unless `all_commands`. Returns the command lines of
    the ended processes.
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
    """Reaps children that have ended, except `but`: other code waits for their status."""
    for pid in set(_children().get(os.getpid(), [])) - but:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def has_ended(pid: int) -> bool:
    """True if the process has ended; a zombie counts as ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _reap_orphans() -> None:
    """Reaps adopted orphans that end while commands run.

    A PID namespace ends only when its last process is reaped, and a test may wait for that. Code
    that starts a child without run() waits for it at once, so a child found twice is an orphan.
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
    # run() would not know the command that it is starting. An exception inside fork handlers
    # (os.register_at_fork, as in logging) would be printed and dropped. So the signal is sent again
    # later.
    if _beginning.locked() or _forking.locked():
        threading.Timer(0.02, os.kill, [os.getpid(), number]).start()
        return
    _stopping.set()
    # Code that unwinds may have to wait for threads that wait for these commands.
    for command in _waited_for - _must_finish:
        end(family(command))
    raise SystemExit(128 + number)


def main(body: Callable[[], int]) -> None:
    """Runs `body` as the whole program; its result is the exit status. No process outlives the
    program."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        say("warning: orphans of tests cannot be adopted (prctl failed)")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    # Everything else is imported by now, so this handler runs first before a fork and last after
    # it.
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

"""Where the threads of a process are, and which processes there are."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path


def of(pid: int, log: Path) -> str:
    """By the kernel, by Python (SIGUSR1; the process writes to its log), by py-spy or gdb."""
    lines = [_thread(task) for task in sorted(Path(f"/proc/{pid}/task").iterdir())]
    before = log.stat().st_size if log.exists() else 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.3)
    if log.exists():
        lines.append(log.read_bytes()[before:].decode(errors="replace"))
    lines.append(_debugger(pid))
    return "\n".join(lines)


def _thread(task: Path) -> str:
    parts = [f"thread {task.name}"]
    for name in ("comm", "wchan", "syscall", "stack"):
        with contextlib.suppress(OSError):
            parts.append(f"{name}: {(task / name).read_text().strip()}")
    return "  ".join(parts)


def _debugger(pid: int) -> str:
    if shutil.which("py-spy"):
        command = ["py-spy", "dump", "--native", "--pid", str(pid)]
    elif shutil.which("gdb"):
        command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 24"]
    else:
        return ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
        return "\n".join(line[:200] for line in done.stdout.splitlines() if line.strip())
    return f"{command[0]} did not end"


def in_groups(groups: set[int]) -> list[int]:
    """Processes of process groups that have not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups and fields[0] != "Z":
                found.append(int(entry.name))
    return found

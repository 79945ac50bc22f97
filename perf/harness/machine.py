"""Describes the machine, and how quiet it was, so that a table can be judged."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path


def describe() -> dict[str, str]:
    cpu = _field("/proc/cpuinfo", "model name") or platform.machine()
    virtual = "hypervisor" in _field("/proc/cpuinfo", "flags").split()
    cache = _read("/sys/devices/system/cpu/cpu0/cache/index3/size")
    memory_kib = int(_field("/proc/meminfo", "MemTotal").split()[0])
    return {
        "cpu": cpu + (", virtual machine" if virtual else ""),
        "cpu model": f"family {_field('/proc/cpuinfo', 'cpu family')}, "
        f"model {_field('/proc/cpuinfo', 'model')}",
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable",
        "L3 cache": cache or "unknown",
        "memory": f"{memory_kib / 2**20:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "system": _os_name(),
        "transparent huge pages": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "the same for shared memory": _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "python": platform.python_version(),
    }


def slug(machine: dict[str, str]) -> str:
    """For a file name: the CPU and its cores, not the host's name."""
    cpu = machine["cpu"].replace(", virtual machine", "")
    words = re.sub(r"\(R\)|\(TM\)|CPU|Processor|@.*", " ", cpu)
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return f"{name}-{machine['cores'].split()[0]}-cores"


class Quiet:
    """Load average and stolen processor time from its construction on."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._load = os.getloadavg()[0]
        self._ticks = _ticks()

    def report(self) -> dict[str, str]:
        now = datetime.now(UTC)
        stolen, total = (b - a for a, b in zip(self._ticks, _ticks(), strict=True))
        return {
            "started": self._started.strftime("%Y-%m-%d %H:%M UTC"),
            "took": f"{(now - self._started).total_seconds():.0f} s",
            "load average before": f"{self._load:.2f}",
            "processor time stolen by the host": f"{100 * stolen / max(total, 1):.1f} %",
        }

    @property
    def warning(self) -> str:
        if self._load < 0.5:
            return ""
        return f"the load average is {self._load:.2f}: something else runs; do not keep the numbers"


def available_bytes() -> int:
    return int(_field("/proc/meminfo", "MemAvailable").split()[0]) * 1024


def _ticks() -> tuple[int, int]:
    fields = [int(x) for x in _read("/proc/stat").splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _field(path: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", _read(path), re.MULTILINE)
    return match.group(1).strip() if match else ""


def _chosen(path: str) -> str:
    match = re.search(r"\[(\w+)\]", _read(path))
    return match.group(1) if match else "unknown"


def _os_name() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return match.group(1) if match else "unknown"

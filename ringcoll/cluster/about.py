"""What a rank tells of itself: where it runs, what is installed there, and which knobs are set."""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import os
import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringcoll import _core
from ringcoll.errors import Error
from ringcoll.findings import FAILED, Finding
from ringcoll.info import OTHER_VARIABLES, library_info
from ringcoll.interfaces import usable_interfaces
from ringcoll.sysfs import read_value

# Packages whose version matters to a job, and are not read where they are not installed.
_PACKAGES = ("horovod", "torch", "tensorflow", "tensorflow-cpu", "numpy")
_SECRET = "RINGCOLL_SECRET"
_HOSTID = "RINGCOLL_HOSTID"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def describe(rank: int, store: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """A report; JSON. ``findings`` are those of the command on this rank."""
    return {
        "rank": rank,
        "hostname": os.environ.get(_HOSTID) or socket.gethostname(),  # as ringcoll calls it
        "process": os.getpid(),
        "host": host_key(),
        "machine": read_value(_BOOT_ID),
        "interfaces": [vars(interface) for interface in usable_interfaces()],
        "versions": _versions(),
        "knobs": _knobs(store),
        "failed": [
            [finding.part, finding.detail] for finding in findings if finding.status == FAILED
        ],
    }


def host_key() -> str:
    """Equal for processes that can map one another's memory: those of one machine in one namespace
    of processes and of users, unless RINGCOLL_HOSTID says otherwise."""
    named = os.environ.get(_HOSTID)
    if named:
        return f"named {named}"
    places = [read_value(_BOOT_ID)]
    places += [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "user")]
    return " ".join(places)


def _versions() -> dict[str, str]:
    found = {
        "ringcoll": f"{_core.version()} (ABI {_core.abi_version()})",
        "Python": platform.python_version(),
        "kernel": platform.release(),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _knobs(store: str) -> dict[str, str]:
    """Values in force; of the secret only whether it is the same."""
    try:
        knobs = {knob["name"]: knob["value"] for knob in library_info()["knobs"]}
    except Error:  # a value that is refused: among the findings
        knobs = {name: os.environ[name] for name in os.environ if name.startswith("RINGCOLL_")}
    for name in OTHER_VARIABLES:
        knobs.pop(name, None)
    if knobs.get(_SECRET):
        digest = hmac.new(knobs[_SECRET].encode(), store.encode(), hashlib.sha256).hexdigest()
        knobs[_SECRET] = f"(secret {digest[:8]})"
    return knobs

"""The report of a rank about itself: where it runs, installed versions, and knobs."""

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

# Packages whose versions matter to a job, if they are installed.
_PACKAGES = ("horovod", "torch", "tensorflow", "tensorflow-cpu", "numpy")
_SECRET = "RINGCOLL_SECRET"
_HOSTID = "RINGCOLL_HOSTID"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def describe(rank: int, store: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Makes this rank's report, which can be encoded as JSON. ``findings`` are those of the command
    on this rank."""
    return {
        "rank": rank,
        "hostname": os.environ.get(_HOSTID) or socket.gethostname(),  # as in the library
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
    """A key that is equal for processes that can map one another's memory. These are the processes
    of one machine in one pid namespace and one user namespace, unless RINGCOLL_HOSTID names
    hosts."""
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
    """The values of the knobs. The secret is replaced by a hash, which shows whether ranks have the
    same one."""
    try:
        knobs = {knob["name"]: knob["value"] for knob in library_info()["knobs"]}
    except Error:  # a knob has an invalid value, which is a finding of its own
        knobs = {name: os.environ[name] for name in os.environ if name.startswith("RINGCOLL_")}
    for name in OTHER_VARIABLES:
        knobs.pop(name, None)
    if knobs.get(_SECRET):
        digest = hmac.new(knobs[_SECRET].encode(), store.encode(), hashlib.sha256).hexdigest()
        knobs[_SECRET] = f"(secret {digest[:8]})"
    return knobs

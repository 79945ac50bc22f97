"""``ringcoll doctor``: tells whether ringcoll can run here, what each part of it found, and why.
Under a launcher it also examines every pair of hosts (:mod:`ringcoll.checkup`)."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringcoll import _core
from ringcoll.checkup import Checkup, check
from ringcoll.checkup.show import make_findings_table, print_checkup
from ringcoll.cluster import take_part
from ringcoll.cluster.options import add_options, is_another_rank
from ringcoll.environment import Job, find_job
from ringcoll.errors import Error
from ringcoll.findings import FAILED, NOTE, OK, Finding, can_run
from ringcoll.horovod.installed import find_installed
from ringcoll.info import OTHER_VARIABLES, costs_text, library_info, wide_console
from ringcoll.interfaces import list_interfaces
from ringcoll.sysfs import read_value


def examine(launcher: Finding) -> list[Finding]:
    """All findings about this host. ``launcher`` is the finding about the job's launcher."""
    findings = [Finding("library", OK, f"ringcoll {_core.version()}, ABI {_core.abi_version()}")]
    try:
        found = library_info()
    except Error as error:
        findings.append(Finding("knobs", FAILED, str(error)))
    else:
        findings += _knobs(found["knobs"])
        costs = found["costs"]
        status = FAILED if costs and "error" in costs else OK
        findings.append(Finding("costs", status, costs_text(costs)))
        findings += _transports(found["transports"], found["knobs"])
        rdma = next((row["found"] for row in found["transports"] if row["name"] == "verbs"), None)
        if rdma is not None:
            findings += _rdma(rdma)
    for examine_part in (_interfaces, _limits, _memory):
        findings += examine_part()
    return [*findings, launcher, *_horovod()]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check whether ringcoll can run here, and under a launcher all pairs of hosts",
        description="Checks whether ringcoll can run here, and prints the reason if not. Started "
        "by a launcher on several hosts, it also checks every pair of hosts.",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    job, launcher = _find_launcher()
    if job is None and is_another_rank():
        return 1
    findings = examine(launcher)
    if job is None or job.size == 1:
        return _show(findings, None, arguments.json)
    try:
        found = take_part(job, check, arguments.wait, arguments.limit, findings)
    except Error as error:
        if job.rank != 0:
            raise
        failure = Finding("meeting place", FAILED, str(error))
        return _show([*findings, failure], None, arguments.json)
    return 0 if found is None else _show(findings, found, arguments.json)


def _show(findings: list[Finding], found: Checkup | None, as_json: bool) -> int:
    everything = findings + (found.findings if found else [])
    fit = can_run(everything)
    if as_json:
        text = {"can_run": fit, "findings": [asdict(finding) for finding in everything]}
        print(json.dumps(text | (found.as_json() if found else {}), indent=2))
        return 0 if fit else 1
    console = wide_console()
    console.print(make_findings_table(findings))
    if found is not None:
        print_checkup(console, found)
    verdict = "ringcoll can run here." if fit else "[bold red]ringcoll cannot run here.[/]"
    if found is not None:
        verdict = "All hosts are well." if fit else "[bold red]Something is wrong, see above.[/]"
    console.print(verdict)
    return 0 if fit else 1


def _knobs(knobs: list[dict[str, str]]) -> Iterator[Finding]:
    changed = [
        f"{knob['name']}={knob['value']}" for knob in knobs if knob["value"] != knob["default"]
    ]
    yield Finding("knobs", OK, ", ".join(changed) or "all at their defaults")
    known = [knob["name"] for knob in knobs] + list(OTHER_VARIABLES)
    for name in os.environ:
        if name.startswith("RINGCOLL_") and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            yield Finding(
                "knobs", NOTE, f"{name} is not known and has no effect; did you mean {nearest}?"
            )


def _transports(transports: list[dict[str, Any]], knobs: list[dict[str, str]]) -> Iterator[Finding]:
    wanted = next(knob["value"] for knob in knobs if knob["name"] == "RINGCOLL_TRANSPORT")
    for row in transports:
        named = row["name"] == wanted
        status = OK if row["usable"] else FAILED if named else NOTE
        verdict = "usable" if row["usable"] else "not usable"
        reason = f": {row['reason']}" if row["reason"] else ""
        yield Finding(f"transport {row['name']}", status, f"{row['help']}; {verdict}{reason}")
    if not any(row["usable"] and row.get("automatic", True) for row in transports):
        yield Finding("transports", FAILED, "no transport can be used between processes here")
    if wanted != "auto" and wanted not in [row["name"] for row in transports]:
        yield Finding(
            "transports", FAILED, f"RINGCOLL_TRANSPORT={wanted}: this build has no such transport"
        )


def _rdma(found: dict[str, Any]) -> Iterator[Finding]:
    """RDMA devices, ports and GIDs, which of them are used, and why the others are not."""
    for row in found["refused"]:
        yield Finding(f"RDMA {row['name']}", NOTE, row["why"])
    for device in found["devices"]:
        if device["problem"]:
            yield Finding(f"RDMA {device['name']}", NOTE, device["problem"])
        for port in device["ports"]:
            yield _port(port)
            for gid in port["gids"]:
                detail = f"{gid['gid']}, {gid['type']}, {gid['interface'] or 'no interface'}"
                part = f"RDMA {port['name']} gid {gid['index']}"
                yield Finding(part, OK, f"{detail}; {_verdict(gid)}")
    if not found["devices"]:
        return
    yield from _device_files()
    patience = found["queue_pairs"]
    yield Finding(
        "RDMA queue pairs",
        OK,
        f"a peer that does not answer is given up after {patience['gives_up_after_s']:.2g} s or "
        f"more: {patience['retries'] + 1} times {patience['timeout_s']:.2g} s "
        "(RINGCOLL_QP_RETRIES, RINGCOLL_QP_TIMEOUT)",
    )
    yield Finding("RDMA fork", OK, found["fork"])


def _port(port: dict[str, Any]) -> Finding:
    if port["problem"]:
        return Finding(f"RDMA {port['name']}", NOTE, port["problem"])
    parts = [
        port["link_layer"],
        f"{port['state']} ({port['physical_state']})",
        f"{port['gigabits']:g} Gb/s",
        f"MTU {port['active_mtu_bytes']}",
        f"messages to {_size(port['max_message_bytes'])}",
    ]
    if port["lid"]:
        parts.append(f"LID {port['lid']}")
    if port["interface"]:
        parts.append(port["interface"])
    status = OK if port["chosen"] else NOTE
    return Finding(f"RDMA {port['name']}", status, f"{', '.join(parts)}; {_verdict(port)}")


def _verdict(row: dict[str, Any]) -> str:
    return f"{'chosen' if row['chosen'] else 'not chosen'}: {row['verdict']}"


def _device_files() -> Iterator[Finding]:
    for path in sorted(Path("/dev/infiniband").glob("uverbs*")):
        if os.access(path, os.R_OK | os.W_OK):
            yield Finding(str(path), OK, "may be read and written")
        else:
            yield Finding(str(path), NOTE, "this user may not read and write it")


def _interfaces() -> Iterator[Finding]:
    addresses: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for each in list_interfaces():
        addresses.setdefault(each.name, []).append(each.address)
    for name, its in addresses.items():
        folder = Path("/sys/class/net") / name
        state = read_value(folder / "operstate") or "unknown"
        speed = read_value(folder / "speed")
        detail = f"{', '.join(its) or 'no address'}, {'loopback' if name == 'lo' else state}"
        if speed and not speed.startswith("-"):
            detail += f", {speed} Mb/s"
        yield Finding(f"interface {name}", OK if its else NOTE, detail)


def _limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limited = soft != resource.RLIM_INFINITY
    text = _size(soft) if limited else "unlimited"
    wanting = limited and any(Path("/sys/class/infiniband").glob("*"))
    yield Finding(
        "limit memlock",
        NOTE if wanting else OK,
        f"{text} (only RDMA locks memory: it wants ulimit -l unlimited)",
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < 1024
    hint = ": a rank needs a few for each peer; raise it by ulimit -n" if few else ""
    yield Finding("limit open files", NOTE if few else OK, f"{soft}{hint}")


def _memory() -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        room = os.statvfs(shm)
        free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
        detail = f"{_size(free)} of {_size(total)} free"
    else:
        detail = "not there"
    yield Finding("/dev/shm", OK, f"{detail} (not used: the arena is anonymous memory)")
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            yield Finding("memory", OK, f"{_size(int(line.split()[1]) * 1024)} available")


def _find_launcher() -> tuple[Job | None, Finding]:
    """The job, or None if the launcher's variables make no sense, and the finding about it."""
    try:
        job = find_job()
    except Error as error:
        return None, Finding("launcher", FAILED, f"{error}; ringcoll.init() fails here")
    if job.launcher == "none" and job.size == 1:
        return job, Finding("launcher", OK, "none: ringcoll.init() here makes a job of one rank")
    where = f"{job.launcher}: rank {job.rank} of {job.size}, store {job.store}"
    return job, Finding("launcher", OK, where)


def _horovod() -> Iterator[Finding]:
    installed = find_installed()
    if installed is None:
        yield Finding("horovod", NOTE, "not installed; `ringcoll horovod install` builds one")
    elif installed.has_backend:
        yield Finding("horovod", OK, f"{installed.version}, with the backend RINGCOLL")
    else:
        remedy = "`ringcoll horovod install` builds one that has it"
        detail = f"{installed.version}, without the backend RINGCOLL; {remedy}"
        yield Finding("horovod", NOTE, detail)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    raise AssertionError

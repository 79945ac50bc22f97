"""Emulated hosts on one machine: namespaces joined by links of a chosen rate. They need root.

    with Cluster(2, [Network(rate="1gbit")]) as cluster:
        subprocess.run(cluster.hosts[0].command(["ping", "-c1", "h2"]))

A **host** (h1, h2 ...) has its own network, pid, uts, ipc and mount namespace. So it has its own
interfaces, /proc, host name, /dev/shm, /sys, and /etc/hosts with the names of all hosts. Other
files are the machine's, so folders and UNIX sockets are shared. Each **network** joins all hosts by
a bridge, or by one bridge for each rack and links between them. The bridges are in the namespace of
the **head**, where launchers run. The head reaches every host and sees the machine's processes.

Nothing has a name outside. One process holds each namespace. When that process ends, the kernel
removes the namespace, its interfaces and its processes. The process ends with close(), or when the
thread that made the cluster ends for any reason (prctl(2), PR_SET_PDEATHSIG). So nothing is left.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = ("net", "uts", "ipc", "mnt")  # those that a process can enter itself
_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWPID = 0x20000000
# 2 ms at 1 Gb/s, as in a switch with little memory; more only where kernel timers need it.
_LEAST_BURST_BYTES = 256 << 10
_BURST_S = 1e-3
_QUEUE = "20ms"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

_BEGIN = """
trap "" CHLD  # orphans are reaped by the kernel
set -e
hostname "$1"
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mount -t sysfs sysfs /sys
printf %s "$2" > /dev/shm/hosts
mount --bind /dev/shm/hosts /etc/hosts
rm /dev/shm/hosts
echo ready
exec sleep infinity
"""

_SSH = """#!/bin/sh
# ssh [options] HOST [options] COMMAND ...: for emulated hosts. No variable goes along.
skip_options() {
  skipped=0
  while [ $# -gt 0 ]; do
    case $1 in
      -[oiplFJbceEmQRSWwDL]) shift; skipped=$((skipped + 1)) ;;
      -*) ;;
      *) return ;;
    esac
    shift; skipped=$((skipped + 1))
  done
}
skip_options "$@"; shift "$skipped"
host=$1; shift
skip_options "$@"; shift "$skipped"
case $host in
CASES
  *) echo "ssh: $host: there is no such host" >&2; exit 255 ;;
esac
"""


class HostsError(Exception):
    """Hosts cannot be made; the message gives cause and remedy."""


@dataclass(frozen=True)
class Network:
    """A network with an interface on every host. In the n-th network, host i (from 0) has the
    address 10.0.<n>.<i+1>, and the head has 10.0.<n>.254."""

    rate: str = ""  # of each host's link, each way, as tc writes it ("1gbit"); "": no limit
    rates: tuple[str, ...] = ()  # of the link of each host, if they differ
    interface: str = "eth{network}"
    names: tuple[str, ...] = ()  # of the interface on each host, if they differ
    joined: bool = True  # False: interfaces are up and have addresses, but nothing is forwarded
    racks: tuple[int, ...] = ()  # the rack of each host, from 0; (): one rack for all
    uplink: str = ""  # rate of the link between each rack and the others
    mtu: int = 1500

    def name(self, network: int, host: int) -> str:
        return self.names[host] if self.names else self.interface.format(network=network)

    def rate_of(self, host: int) -> str:
        return self.rates[host] if self.rates else self.rate

    def rack(self, host: int) -> int:
        return self.racks[host] if self.racks else 0


class Host:
    """A host, made by Cluster. `pid` is its process 1 as seen from outside, which holds its
    namespaces."""

    def __init__(self, name: str, addresses: list[str], script: list[str], own_pids: bool) -> None:
        self.name = name
        self.addresses = addresses  # one for each network
        unshare = ["unshare", "--net", "--uts", "--ipc", "--mount"]
        if own_pids:
            unshare += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        self._own_pids = own_pids
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *unshare, *script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout
        said = self._process.stdout.readline()
        if said != "ready\n":
            said += self._process.stdout.read()
            raise HostsError(f"{self.name} cannot be made: {said.strip()}")
        self.pid = self._process.pid
        if self._own_pids:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
            self.pid = int(children.read_text())

    def command(self, words: Sequence[str], folder: str | Path = "") -> list[str]:
        """Returns the command that starts `words` on this host, in `folder` (default: the current
        one). If that command is killed, the started program is killed as well."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--uts", "--ipc", "--mount"]
        enter += ["--pid"] if self._own_pids else []
        there = f"--chdir={folder or Path.cwd()}"
        return [*enter, "--", "env", there, "setpriv", "--pdeathsig=KILL", *words]

    @contextmanager
    def birthplace(self) -> Iterator[None]:
        """Children that this thread forks meanwhile begin in the pid namespace of this host. They
        call enter() for the other namespaces."""
        here = os.open("/proc/self/ns/pid", os.O_RDONLY)
        there = os.open(f"/proc/{self.pid}/ns/pid", os.O_RDONLY)
        try:
            _set_namespace(there, _CLONE_NEWPID)
            try:
                yield
            finally:
                _set_namespace(here, _CLONE_NEWPID)
        finally:
            os.close(here)
            os.close(there)

    def enter(self) -> None:
        """Moves this process onto the host. It must have one thread and come from birthplace()."""
        folder = Path.cwd()
        # All are opened before the mounts change, while /proc is still the machine's.
        opened = [os.open(f"/proc/{self.pid}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES]
        for namespace in opened:
            _set_namespace(namespace, 0)
            os.close(namespace)
        os.chdir(folder)

    def configure(self, program: str, lines: list[str]) -> None:
        """Runs `program` (ip or tc) with these lines in this host's network."""
        if not lines:
            return
        done = subprocess.run(
            ["nsenter", f"--target={self.pid}", "--net", "--", program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise HostsError(f"{self.name}: {program}: {done.stderr.strip()}")

    def close(self) -> None:
        """Ends all processes of the host, and waits for that."""
        if self._process.poll() is None:
            os.kill(getattr(self, "pid", self._process.pid), signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


class Cluster:
    """Hosts and their networks; a context manager. Making one takes some tenths of a second."""

    def __init__(self, hosts: int, networks: Sequence[Network] = (Network(),)) -> None:
        if reason := missing():
            raise HostsError(reason)
        names = [f"h{i + 1}" for i in range(hosts)]
        places = [[f"10.0.{n}.{i + 1}" for n in range(len(networks))] for i in range(hosts)]
        above = [f"10.0.{n}.254" for n in range(len(networks))]
        known = [("localhost", "127.0.0.1"), ("head", above[0])]
        known += [(name, addresses[0]) for name, addresses in zip(names, places, strict=True)]
        text = "".join(f"{address} {name}\n" for name, address in known)
        begin = ["sh", "-c", _BEGIN, "sh"]
        self.head = Host("head", above, [*begin, "head", text], own_pids=False)
        self.hosts: list[Host] = []
        try:
            for name, addresses in zip(names, places, strict=True):
                self.hosts.append(Host(name, addresses, [*begin, name, text], own_pids=True))
            for host in (self.head, *self.hosts):
                host.wait_until_ready()
            for n, network in enumerate(networks):
                self._join(n, network)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for host in (*self.hosts, self.head):
            host.close()

    def write_ssh(self, folder: Path) -> Path:
        """Writes a program `ssh` into `folder` for launchers on the head; it runs a command on a
        host."""
        cases = []
        for host in self.hosts:
            clean = [
                "env",
                "-i",
                f"HOME={Path.home()}",
                "USER=root",
                "PATH=/usr/bin:/bin:/usr/sbin:/sbin",
            ]
            start = shlex.join([*host.command(clean, Path.home()), "sh", "-c"])
            cases.append(f'  {host.name}|{host.addresses[0]}) exec {start} "$*" ;;')
        program = folder / "ssh"
        program.write_text(_SSH.replace("CASES", "\n".join(cases)))
        program.chmod(0o755)
        return program

    def _join(self, n: int, network: Network) -> None:
        """Makes bridges in the head: one for each rack and, if there are several racks, one above
        them. The top bridge has the name of the hosts' interfaces, since it is the head's
        interface."""
        racks = sorted({network.rack(i) for i in range(len(self.hosts))})
        top = network.interface.format(network=n)
        bridges = {rack: f"n{n}-rack{rack}" if len(racks) > 1 else top for rack in racks}
        links = [f"link add name {name} type bridge" for name in {top, *bridges.values()}]
        shapes = []
        for rack, bridge in bridges.items():
            if bridge != top:
                up, down = f"n{n}-up{rack}", f"n{n}-down{rack}"
                links += [f"link add name {up} type veth peer name {down}"]
                links += [f"link set dev {up} master {bridge}", f"link set dev {down} master {top}"]
                shapes += [(up, network.uplink), (down, network.uplink)]
        for i, host in enumerate(self.hosts):
            port, inside = f"n{n}-{host.name}", network.name(n, i)
            links.append(f"link add name {port} type veth peer name {inside} netns {host.pid}")
            shapes.append((port, network.rate_of(i)))
            if network.joined:
                links.append(f"link set dev {port} master {bridges[network.rack(i)]}")
        up = f"mtu {network.mtu} up"
        links += [f"link set dev {name} {up}" for name, _ in shapes]
        links += [f"link set dev {name} {up}" for name in {top, *bridges.values()}]
        if network.joined:
            links.append(f"address add {self.head.addresses[n]}/24 dev {top}")
        self.head.configure("ip", links)
        self.head.configure("tc", [line for name, rate in shapes for line in _shape(name, rate)])
        for i, host in enumerate(self.hosts):
            inside = network.name(n, i)
            address = f"address add {host.addresses[n]}/24 dev {inside}"
            host.configure("ip", [address, f"link set dev {inside} {up}"])
            host.configure("tc", _shape(inside, network.rate_of(i)))


def missing() -> str:
    """Returns why no hosts can be emulated here; empty if they can."""
    if os.geteuid() != 0:
        return "emulated hosts need root, for their networks"
    absent = [
        name for name in ("ip", "tc", "unshare", "nsenter", "setpriv") if not shutil.which(name)
    ]
    return (
        f"not on PATH: {', '.join(absent)} (apt-get install iproute2 util-linux)" if absent else ""
    )


def bits_per_second(rate: str) -> float:
    """Converts a rate as tc writes it: "1gbit"."""
    match = re.fullmatch(r"([\d.]+)([kmg]bit)", rate)
    if not match:
        raise HostsError(f'"{rate}" is not a rate such as 100mbit or 10gbit')
    return float(match[1]) * _UNITS[match[2]]


def _shape(interface: str, rate: str) -> list[str]:
    if not rate:
        return []
    burst = max(_LEAST_BURST_BYTES, round(bits_per_second(rate) / 8 * _BURST_S))
    bucket = f"tbf rate {rate} burst {burst} latency {_QUEUE}"
    return [f"qdisc replace dev {interface} root {bucket}"]


def _set_namespace(namespace: int, kind: int) -> None:
    if _libc.setns(namespace, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")

"""The network interfaces of this host, and which of them ringcoll would use."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

_SIOCGIFADDR = 0x8915
# As csrc/net/interfaces.cc and base/config.cc have them.
_VIRTUAL = ("docker", "virbr", "veth", "br-")
_OF_LAUNCHERS = ("NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME")
_IPV6_GLOBAL = "00"


@dataclass(frozen=True)
class Interface:
    name: str
    address: str  # IPv4 where there is one, else IPv6
    mtu: int
    speed: int  # Mb/s as the driver says, 0: unknown
    up: bool
    loopback: bool


def list_interfaces() -> list[Interface]:
    """Those with an address, in the kernel's order."""
    found = []
    for _, name in socket.if_nameindex():
        address = ipv4_address(name) or _ipv6_address(name)
        if address is None:
            continue
        folder = Path("/sys/class/net") / name
        state = _read(folder / "operstate")
        speed = _read(folder / "speed")
        found.append(
            Interface(
                name,
                address,
                int(_read(folder / "mtu") or 0),
                max(0, int(speed or 0)),
                state in ("up", "unknown"),
                name == "lo",
            )
        )
    return found


def usable_interfaces() -> list[Interface]:
    """Those that are up and wanted, in the kernel's order: what RINGCOLL_INTERFACE says, else the
    launcher, else all but loopback and bridges; loopback if there is no other."""
    up = [each for each in list_interfaces() if each.up]
    if wanted := os.environ.get("RINGCOLL_INTERFACE", ""):
        return [each for each in up if _is_wanted(wanted, each)]
    for name in _OF_LAUNCHERS:
        named = os.environ.get(name, "").split(",")
        if found := [each for each in up if each.name in named]:
            return found
    return [each for each in up if _is_outward(each)] or [each for each in up if each.loopback]


def _is_outward(interface: Interface) -> bool:
    return not interface.loopback and not interface.name.startswith(_VIRTUAL)


def _is_wanted(wanted: str, interface: Interface) -> bool:
    """As ringcoll reads it: "eth,10.1.0.0/16", "=eth0", "^docker"."""
    excluded, text = wanted.startswith("^"), wanted.removeprefix("^")
    whole, entries = text.startswith("="), text.removeprefix("=").split(",")
    named = any(_matches(entry, whole, interface) for entry in entries if entry)
    return not (named or interface.loopback) if excluded else named


def _matches(entry: str, whole: bool, interface: Interface) -> bool:
    if "/" in entry:
        with contextlib.suppress(ValueError):
            network = ipaddress.ip_network(entry, strict=False)
            return ipaddress.ip_address(interface.address) in network
    return interface.name == entry if whole else interface.name.startswith(entry)


def ipv4_address(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_address(interface: str) -> str | None:
    """One of global scope: those of a link need its number in addition."""
    for line in _read(Path("/proc/net/if_inet6")).splitlines():
        address, _, _, scope, _, name = line.split()
        if name == interface and (scope == _IPV6_GLOBAL or interface == "lo"):
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a speed that the driver does not know, among others
        return ""

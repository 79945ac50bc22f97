"""The network interfaces of this host, and those of them that the library would use.

doctor and probe must work where the library fails. So this module repeats the rules of
csrc/net/interfaces.cc and csrc/connect/connector.cc.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ringcoll.sysfs import read_value

_VIRTUAL = ("docker", "virbr", "veth", "br-")
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40  # <net/if.h>
# Offset and length of the address in sockaddr_in and sockaddr_in6.
_ADDRESSES: dict[int, tuple[int, int]] = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}


@dataclass(frozen=True)
class Interface:
    """One address of an interface."""

    name: str
    address: str
    mtu: int  # 0: unknown
    speed: int  # Mb/s, from the driver; 0: unknown
    up: bool  # up and running, that is with a carrier
    loopback: bool


class _Entry(ctypes.Structure):
    """struct ifaddrs of <ifaddrs.h>."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("broadcast", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def list_interfaces() -> list[Interface]:
    """One entry for each address, IPv4 first, in the kernel's order. IPv6 link-local addresses are
    left out. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)):
        number = ctypes.get_errno()
        raise OSError(number, f"getifaddrs: {os.strerror(number)}")
    found = []
    try:
        entry = first
        while entry:
            each = entry.contents
            if address := _address_of(each):
                found.append(_describe(each.name.decode(), address, each.flags))
            entry = each.next
    finally:
        libc.freeifaddrs(first)
    return sorted(found, key=lambda each: ":" in each.address)


def _address_of(entry: _Entry) -> str:
    """The address as text. Empty for other address families, and for link-local addresses, which
    need the interface's number too."""
    if not entry.address:
        return ""
    family = ctypes.c_ushort.from_address(entry.address).value
    if family not in _ADDRESSES:
        return ""
    place, length = _ADDRESSES[family]
    address = ipaddress.ip_address(ctypes.string_at(entry.address + place, length))
    return "" if address.version == 6 and address.is_link_local else str(address)


def _describe(name: str, address: str, flags: int) -> Interface:
    folder = Path("/sys/class/net") / name
    return Interface(
        name,
        address,
        int(read_value(folder / "mtu") or 0),
        max(0, int(read_value(folder / "speed") or 0)),
        flags & (_UP | _RUNNING) == _UP | _RUNNING,
        bool(flags & _LOOPBACK),
    )


def usable_interfaces() -> list[Interface]:
    """The interfaces that RINGCOLL_INTERFACE selects, the fastest first. Without it, those of the
    launcher's variables; if these select none, all that are suitable. Empty if RINGCOLL_INTERFACE
    selects none."""
    there = list_interfaces()
    if wanted := os.environ.get("RINGCOLL_INTERFACE"):
        found = select_interfaces(wanted, there)
    else:
        told = _told_by_launcher()
        found = select_interfaces(told, there) if told else []
        found = found or select_interfaces("", there)
    return sorted(found, key=lambda each: -each.speed)


def _told_by_launcher() -> str:
    """The launcher's selection, in the syntax of RINGCOLL_INTERFACE. horovodrun puts an arbitrary
    one of the interfaces that it found into HOROVOD_GLOO_IFACE, and all of them into
    NCCL_SOCKET_IFNAME."""
    names = ("HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    horovod, gloo, nccl = (os.environ.get(name, "") for name in names)
    if horovod and f",{horovod}," in f",{nccl},":
        return f"={nccl}"
    return f"={horovod or gloo}" if horovod or gloo else nccl


def select_interfaces(wanted: str, there: Iterable[Interface]) -> list[Interface]:
    """The interfaces that ``wanted`` selects, in their order. Those that are down are left out
    unless all are down. ``wanted`` is "eth,10.1.0.0/16" (prefixes of names, and networks), "=eth0"
    (whole names), or "^docker" (all but these and loopback). Empty: all but loopback and virtual
    interfaces. If "^…" or empty selects none that is up, loopback is selected."""
    there = list(there)
    exclude, text = wanted.startswith("^"), wanted.removeprefix("^")
    whole, entries = text.startswith("="), text.removeprefix("=").split(",")

    def is_named(each: Interface) -> bool:
        return any(_matches(entry, whole, each) for entry in entries if entry)

    def is_outward(each: Interface) -> bool:
        left_out = is_named(each) if exclude else each.name.startswith(_VIRTUAL)
        return each.up and not each.loopback and not left_out

    if wanted and not exclude:
        found = [each for each in there if is_named(each)]
    else:
        found = [each for each in there if is_outward(each)]
        found = found or [each for each in there if each.loopback and not is_named(each)]
    return [each for each in found if each.up] or found


def _matches(entry: str, whole: bool, interface: Interface) -> bool:
    _, slash, bits = entry.partition("/")
    if slash and bits.isdecimal():
        with contextlib.suppress(ValueError):
            network = ipaddress.ip_network(entry, strict=False)
            return ipaddress.ip_address(interface.address) in network
    return interface.name == entry if whole else interface.name.startswith(entry)

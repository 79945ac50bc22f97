"""Owns a region of bytes and does what it is told, line by line.

Arguments: where the memory lies ("empty" or "plain"), its bytes, and "writable" or "readonly". Says
the address of its door and the handle.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy

import ringcoll


def main() -> None:
    kind, length, access = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    agent = ringcoll.serve("test", "key")
    url = agent.addresses[0]
    memory = ringcoll.empty(length, "uint8") if kind == "empty" else numpy.zeros(length, "uint8")
    memory[:] = numpy.arange(length, dtype="uint64").astype("uint8")
    region = agent.register(memory, writable=access == "writable")
    print(url, region.handle().hex(), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "close":
            region.close()
            print("closed", flush=True)
        elif word == "sum":
            print(int(memory.sum(dtype="uint64")), flush=True)
        elif word == "fill":
            memory[:] = int(rest[0])
            print("filled", flush=True)
        elif word == "notice":
            print(region.wait_notice(timeout=20), flush=True)
        elif word == "descriptors":
            print(len(list(Path("/proc/self/fd").iterdir())), flush=True)


main()

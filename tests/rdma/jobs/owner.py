"""Owns a region of bytes, and does what it is told, line by line: the owner in test_agents.py.

Argument: the bytes of the region. Says the address of its door and the handle.
"""

from __future__ import annotations

import json
import sys
import time

import numpy

import ringcoll


def main() -> None:
    agent = ringcoll.serve("test", "key")
    memory = ringcoll.empty(int(sys.argv[1]), "uint8")
    memory[:] = numpy.arange(memory.size, dtype="uint64") % 251
    region = agent.register(memory, writable=True)
    print(agent.addresses[0], region.handle().hex(), flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        answer: object = "done"
        if word == "close":
            region.close()
        elif word == "count":
            answer = int((memory == int(rest[0])).sum())
        elif word == "notice":
            answer = region.wait_notice(timeout=30)
        elif word == "stats":
            answer = {**agent.stats(), "cpu": time.process_time()}
        print(json.dumps(answer), flush=True)


main()

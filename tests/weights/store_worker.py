"""A process that is a rank or guest of a store, for tests that kill it.

It reads one expression a line from standard input, and prints its value, or its error, as JSON.
The names ``store`` and ``numpy`` are there.
"""

from __future__ import annotations

import json
import sys

import numpy

import ringcoll


def main() -> None:
    kind, *words = sys.argv[1:]
    if kind == "rank":
        rank, size, directory, replicas = int(words[0]), int(words[1]), words[2], int(words[3])
        world = ringcoll.init(rank, size, f"file://{directory}")
        store = ringcoll.Store("weights", world, key="secret", replicas=replicas, timeout=30)
    else:
        guest = ringcoll.connect(words[0], key="secret")
        store = ringcoll.Store("weights", guest, hold=words[1] == "hold", timeout=30)
    print(json.dumps(store.address), flush=True)
    names = {"store": store, "numpy": numpy}
    for line in sys.stdin:
        try:
            value = eval(line, names)
            json.dumps(value)
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
        print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()

"""Mounts a MemorySource, and obeys lines of standard input: a process of a test.

Each line is a Python expression over ``source``, ``np`` and ``random_bytes``; its value is printed
as JSON. Arguments: those of ``ringcoll mount``.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading

import numpy as np
from memory_source import MemorySource

from ringcoll.errors import Error
from ringcoll.weights.mount_cli import add_mount_parser


def random_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def obey(source: MemorySource) -> None:
    for line in sys.stdin:
        names = {"source": source, "np": np, "random_bytes": random_bytes}
        print(json.dumps(eval(line, names), default=str), flush=True)


def main() -> int:
    source = MemorySource()
    parser = argparse.ArgumentParser()
    add_mount_parser(parser.add_subparsers(), lambda _: source, lambda _: None)
    threading.Thread(target=obey, args=(source,), daemon=True).start()
    args = parser.parse_args(["mount", *sys.argv[1:]])
    try:
        return int(args.run(args))
    except Error as error:
        print(f"ringcoll mount: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

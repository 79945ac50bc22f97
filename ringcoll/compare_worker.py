"""One rank of ``ringcoll compare``: times allreduces through Horovod, under whatever backend it was
started with.

``--probe`` tells instead what the installed Horovod was built with. Results are JSON in the file
``--output``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from pathlib import Path
from typing import Any

FRAMEWORKS = ("torch", "tensorflow")
_SECONDS_PER_SIZE = 0.5
_MOST_REPEATS = 200


def main() -> None:
    parser = argparse.ArgumentParser(prog="ringcoll.compare_worker", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--framework", choices=FRAMEWORKS)
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[]
    )
    parser.add_argument("--probe", action="store_true")
    arguments = parser.parse_args()
    result = probe() if arguments.probe else measure(arguments.framework, arguments.sizes)
    if result is not None:
        arguments.output.write_text(json.dumps(result))


def probe() -> dict[str, Any]:
    """The framework and backends of the installed Horovod. If no binding works, ``framework`` is
    null and ``reasons`` says why."""
    reasons = []
    for framework in FRAMEWORKS:
        try:
            hvd = importlib.import_module(f"horovod.{framework}")
        except Exception as error:
            reasons.append(f"horovod.{framework}: {error}")
            continue
        backends = {name: _built(hvd, f"{name}_built") for name in ("ringcoll", "gloo", "mpi")}
        return {"framework": framework, "backends": backends, "reasons": reasons}
    return {"framework": None, "backends": {}, "reasons": reasons}


def _built(hvd: Any, question: str) -> bool:
    ask = getattr(hvd, question, None)
    return bool(ask and ask())


def measure(framework: str, sizes: list[int]) -> dict[str, float] | None:
    """Median seconds of one allreduce, by size in bytes. None on ranks other than 0."""
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    medians = {}
    for size in sizes:
        once = _allreduce(framework, hvd, size)
        medians[str(size)] = statistics.median(_times(once, hvd))
    rank = hvd.rank()
    hvd.shutdown()
    return medians if rank == 0 else None


def _allreduce(framework: str, hvd: Any, size: int) -> Any:
    """A function that runs one allreduce of ``size`` bytes of float32, with the operation max."""
    count = max(1, size // 4)
    if framework == "torch":
        import torch

        tensor = torch.ones(count)
        return lambda: hvd.allreduce_(tensor, op=hvd.Max, name=f"compare.{size}")
    import tensorflow

    constant = tensorflow.ones(count)
    return lambda: hvd.allreduce(constant, op=hvd.Max, name=f"compare.{size}")


def _times(once: Any, hvd: Any) -> list[float]:
    for _ in range(3):
        once()
    begin = time.perf_counter()
    once()
    # All ranks must make the same number of calls, so rank 0 decides how many.
    repeats = int(_SECONDS_PER_SIZE / (time.perf_counter() - begin))
    repeats = hvd.broadcast_object(max(3, min(_MOST_REPEATS, repeats)), root_rank=0)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        once()
        times.append(time.perf_counter() - begin)
    return times


if __name__ == "__main__":
    main()

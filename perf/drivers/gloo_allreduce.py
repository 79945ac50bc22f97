"""torch.distributed's gloo backend over loopback: gloo_allreduce.py <harness socket> <ranks> <dir>

torch.distributed offers allreduce in place only. It is timed in place: Gloo is spared the copy that
the other peers do, and the ratios against it are the smaller for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from bench import Harness, peak_resident_kib, times_line

UNTIMED_CALLS = 2
PR_SET_PDEATHSIG = 1


def fork_ranks(size: int) -> int:
    parent = os.getpid()
    for rank in range(1, size):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            return rank
    return 0


class Rank:
    def __init__(self, harness: Harness, rank: int, size: int) -> None:
        self._harness, self._rank, self._size = harness, rank, size
        self._buffer = torch.empty(0)

    def _prepare(self, count: int) -> None:
        pattern = (torch.arange(count) % 17 + 1).float()
        self._buffer = pattern * (self._rank + 1)
        dist.all_reduce(self._buffer)
        if not torch.equal(self._buffer, pattern * (self._size * (self._size + 1) // 2)):
            self._harness.fail(f"rank {self._rank}: wrong sum of {count} elements")
        self._buffer.zero_()  # stays zero however often it is summed
        for _ in range(UNTIMED_CALLS):
            dist.all_reduce(self._buffer)

    def run(self, arguments: list[str]) -> str:
        size_bytes, batches, calls = map(int, arguments)
        if self._buffer.numel() != size_bytes // 4:
            self._prepare(size_bytes // 4)
        seconds = []
        for _ in range(batches):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(self._buffer)
            seconds.append(time.perf_counter() - start)
        return times_line(seconds)

    def memory(self, _: list[str]) -> str:
        return f"memory {peak_resident_kib()} {self._buffer.numel() * 4 // 1024}"


def main() -> None:
    socket_path, ranks, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    rank = fork_ranks(ranks)
    if "PERF_PIN" in os.environ and ranks <= len(os.sched_getaffinity(0)):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/gloo-store", rank=rank, world_size=ranks
    )
    harness = Harness(socket_path, rank)
    state = Rank(harness, rank, ranks)
    harness.serve({"run": state.run, "memory": state.memory})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

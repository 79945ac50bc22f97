"""torch.distributed's gloo backend, over loopback unless told: <harness socket> <ranks> <dir>

torch.distributed offers allreduce in place only. It is timed in place: Gloo is spared the copy that
the other peers do, and the ratios against it are the smaller for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from bench import Harness, peak_resident_kib, times_line

LARGE = 16 << 20  # elements, from which the call that is verified is the only untimed one
PR_SET_PDEATHSIG = 1


def fork_ranks(size: int) -> int:
    parent = os.getpid()
    first, *others = [
        int(word) for word in os.environ.get("PERF_RANKS", "").split(",") if word
    ] or (range(size))
    for rank in others:
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            return rank
    return first


class Rank:
    def __init__(self, harness: Harness, rank: int, size: int) -> None:
        self._harness, self._rank, self._size = harness, rank, size
        self._buffer = torch.empty(0)
        self._verified = 0
        self._factor = 1 / size if "PERF_AVERAGE" in os.environ else 0.0
        self._writes = "PERF_WRITES" in os.environ

    def _call(self) -> None:
        dist.all_reduce(self._buffer)
        if self._factor:
            self._buffer *= self._factor

    def _write(self) -> float:
        """As drivers/bench.h has it. Returns the seconds that it took."""
        if not self._writes:
            return 0.0
        start = time.perf_counter()
        self._buffer *= 1
        return time.perf_counter() - start

    def _blocks(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Stretches of the buffer, and the pattern there: a whole one would take more memory than
        there is with many ranks."""
        pattern = (torch.arange(17) + 1).float().repeat(1 << 16)
        for part in self._buffer.split(len(pattern)):
            yield part, pattern[: len(part)]

    def _verify(self, count: int) -> None:
        self._buffer = torch.empty(count)
        for part, pattern in self._blocks():
            part.copy_(pattern * (self._rank + 1))
        self._call()
        factor = self._size * (self._size + 1) // 2 * (self._factor or 1)
        rounding = 1e-6 if self._factor else 0
        for part, pattern in self._blocks():
            if not torch.allclose(part, pattern * factor, rtol=rounding, atol=0):
                self._harness.fail(f"rank {self._rank}: wrong result of {count} elements")
        self._buffer.zero_()  # stays zero however often it is summed
        if count < LARGE:
            self._call()
        self._verified = count

    def _prepare(self, count: int) -> None:
        if count != self._verified:
            self._verify(count)
        else:
            self._buffer = torch.zeros(count)

    def run(self, arguments: list[str]) -> str:
        size_bytes, batches, calls = map(int, arguments)
        if self._buffer.numel() != size_bytes // 4:
            self._prepare(size_bytes // 4)
        seconds = []
        for _ in range(batches):
            dist.barrier()
            written = 0.0
            start = time.perf_counter()
            for _ in range(calls):
                written += self._write()
                self._call()
            seconds.append(time.perf_counter() - start - written)
        return times_line(seconds)

    def free(self, _: list[str]) -> str:
        self._buffer = torch.empty(0)
        return "freed"

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
    harness.serve({"run": state.run, "memory": state.memory, "free": state.free})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

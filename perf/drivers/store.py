"""A store of weights: rank 0 trains and holds, rank 1 follows as a guest.

Commands, each to both ranks; a rank that has nothing to do answers no times:

    make TENSORS BYTES      the trainer makes a state dict of bfloat16, the follower room for two
    change SHARE            the trainer changes this share of the elements; answers "changed"
    memcpy                  the trainer copies its state dict to other memory: seconds
    commit                  the trainer commits it, and waits: seconds
    background SECONDS      a pass of the trainer, which takes this long, after commit(wait=False):
                            seconds that it paused in all, seconds of the pass
    whole                   the follower reads the newest version: seconds, bytes
    since                   the same, but only what changed since it did so last: seconds, bytes
    compare                 what was read by "whole" and "since" is the same; answers "compared"
    npy                     the follower maps the newest version's .npy files and copies them:
                            seconds, seconds of a second copy, and of a memcpy of as many bytes
    safetensors             the same with model.safetensors
    mount                   the follower mounts the store: "mounted"
    fuse                    the follower reads model.safetensors of the newest version, which nobody
                            has read: seconds, bytes, seconds of a second read
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import one_sided
import torch
from bench import Harness, times_line

import ringcoll

KEY = "key"
_MOUNT_S = 30.0
_VERSION_S = 120.0
_BLOCK_BYTES = 1 << 20
_PASS_SIZE = 256  # of a square matrix, which stays in the caches


@contextlib.contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    times.append(time.perf_counter() - begin)


def _state_dict(tensors: int, size: int) -> dict[str, torch.Tensor]:
    """Of memory that has been written, so that no page is missing later."""
    count = size // tensors // 2
    return {f"layer.{n}.weight": torch.ones(count, dtype=torch.bfloat16) for n in range(tensors)}


def _bits(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.int16).numpy()


def _copy_all(out: dict[str, torch.Tensor], source: dict[str, torch.Tensor]) -> None:
    for name, tensor in source.items():
        np.copyto(_bits(out[name]), _bits(tensor))


class Trainer:
    def __init__(self, start: one_sided.Start, path: str) -> None:
        self._world = ringcoll.init(0, 1, f"file://{start.directory}")
        files = {"path": path} if path else {}
        self._store = ringcoll.Store("weights", self._world, key=KEY, **files)
        start.publish("address", str(self._store.address).encode())
        self._random = np.random.default_rng(1)
        self._weights: dict[str, torch.Tensor] = {}
        self._other: dict[str, torch.Tensor] = {}

    def make(self, tensors: int, size: int) -> str:
        self._weights = _state_dict(tensors, size)
        self._other = _state_dict(tensors, size)
        for tensor in self._weights.values():
            bits = _bits(tensor)
            bits[:] = self._random.integers(-(1 << 15), 1 << 15, len(bits), np.int16)
        return "made"

    def change(self, share: float) -> str:
        for tensor in self._weights.values():
            bits = _bits(tensor)
            where = self._random.integers(0, len(bits), max(1, round(share * len(bits))))
            bits[where] ^= 1
        return "changed"

    def memcpy(self) -> list[float]:
        times: list[float] = []
        with _timed(times):
            _copy_all(self._other, self._weights)
        return times

    def commit(self) -> list[float]:
        times: list[float] = []
        with _timed(times):
            self._store.put_state_dict(self._weights)
            self._store.commit()
        return times

    def background(self, seconds: float) -> list[float]:
        paused: list[float] = []
        whole: list[float] = []
        matrix = torch.ones(_PASS_SIZE, _PASS_SIZE)
        torch.set_num_threads(1)
        with _timed(whole):
            with _timed(paused):
                self._store.put_state_dict(self._weights)
                pending = self._store.commit(wait=False)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                matrix @ matrix
            with _timed(paused):
                pending.copied()
        pending.wait()
        return [sum(paused), *whole]

    def close(self) -> None:
        self._store.close()
        self._world.close()


class Follower:
    def __init__(self, start: one_sided.Start, path: str) -> None:
        self._address = start.expect("address").decode()
        self._guest = ringcoll.connect(self._address, key=KEY)
        self._store = ringcoll.Store("weights", self._guest)
        self._path, self._directory = path, start.directory
        self._whole: dict[str, torch.Tensor] = {}
        self._since: dict[str, torch.Tensor] = {}
        self._version: int | None = None
        self._mount: subprocess.Popen[str] | None = None

    def make(self, tensors: int, size: int) -> str:
        self._whole = _state_dict(tensors, size)
        self._since = _state_dict(tensors, size)
        return "made"

    def _newest(self) -> int:
        return max(version.number for version in self._store.versions())

    def _read(self, read: Callable[[], object]) -> list[float]:
        times: list[float] = []
        before = self._moved_bytes()
        with _timed(times):
            read()
        return [*times, self._moved_bytes() - before]

    def _moved_bytes(self) -> int:
        """What this process has copied from the holders."""
        return sum(self._guest.stats()["served"].values())

    def whole(self) -> list[float]:
        return self._read(lambda: self._store.get_state_dict(out=self._whole))

    def since(self) -> list[float]:
        newest, before = self._newest(), self._version
        found = self._read(
            lambda: self._store.get_state_dict(out=self._since, version=newest, since=before)
        )
        self._version = newest
        return found

    def compare(self) -> str:
        for name, tensor in self._whole.items():
            if not np.array_equal(_bits(tensor), _bits(self._since[name])):
                raise ValueError(f"{name}: the delta gives another tensor")
        return "compared"

    def npy(self) -> list[float]:
        return self._copy_mapped(self._map_npy)

    def safetensors(self) -> list[float]:
        return self._copy_mapped(self._map_safetensors)

    def _copy_mapped(self, map_all: Callable[[Path], list[Any]]) -> list[float]:
        folder = self._await(Path(self._path) / str(self._newest()))
        outs = [_bits(tensor) for tensor in self._whole.values()]
        times: list[float] = []
        with _timed(times):
            mapped = map_all(folder)
            for out, tensor in zip(outs, mapped, strict=True):
                np.copyto(out, tensor)
        with _timed(times):
            for out, tensor in zip(outs, mapped, strict=True):
                np.copyto(out, tensor)
        with _timed(times):
            _copy_all(self._since, self._whole)
        return times

    def _map_npy(self, folder: Path) -> list[Any]:
        paths = [folder / f"{name}.npy" for name in self._whole]
        return [np.load(path, mmap_mode="r").view(np.int16) for path in paths]

    def _map_safetensors(self, folder: Path) -> list[Any]:
        with (folder / "model.safetensors").open("rb", buffering=0) as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        begin = 8 + int.from_bytes(memory[:8], "little")
        header = json.loads(memory[8:begin])
        data = np.frombuffer(memory, np.uint8)[begin:]
        places = [header[name]["data_offsets"] for name in self._whole]
        return [data[first:end].view(np.int16) for first, end in places]

    def _await(self, path: Path) -> Path:
        end = time.monotonic() + _VERSION_S
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"no {path} within {_VERSION_S:.0f} s")
            time.sleep(0.01)
        return path

    def mount(self) -> str:
        point = self._directory / "mount"
        point.mkdir()
        words = [
            sys.executable,
            "-P",
            "-m",
            "ringcoll",
            "store",
            "mount",
            self._address,
            str(point),
        ]
        key = {**os.environ, "RINGCOLL_KEY": KEY}
        self._mount = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=key)
        assert self._mount.stdout
        said = self._mount.stdout.readline()
        if not said.startswith("mounted"):
            raise RuntimeError(f"{' '.join(words)}: {said.strip() or 'it ended'}")
        return "mounted"

    def fuse(self) -> list[float]:
        path = self._directory / "mount" / str(self._newest()) / "model.safetensors"
        times: list[float] = []
        block = bytearray(_BLOCK_BYTES)
        for _ in range(2):
            with _timed(times), self._await(path).open("rb", buffering=0) as file:
                while file.readinto(block):
                    pass
        return [times[0], path.stat().st_size, times[1]]

    def close(self) -> None:
        if self._mount:
            self._mount.terminate()
            self._mount.wait(_MOUNT_S)
        self._store.close()
        self._guest.close()


def main() -> None:
    start = one_sided.Start()
    path = start.words[0] if start.words else ""
    role = Follower(start, path) if start.is_user else Trainer(start, path)

    def handler(name: str) -> Callable[[list[str]], str]:
        def handle(words: list[str]) -> str:
            method = getattr(role, name, None)
            if method is None:
                return _IDLE.get(name, "times")
            kind = int if name == "make" else float
            answer = method(*map(kind, words))
            return answer if isinstance(answer, str) else times_line(answer)

        return handle

    commands = ("make", "change", "memcpy", "commit", "background", "whole", "since", "compare")
    files = ("npy", "safetensors", "mount", "fuse")
    harness = Harness(start.socket, start.rank)
    try:
        harness.serve({name: handler(name) for name in (*commands, *files)})
    finally:
        role.close()
        os._exit(0)  # whatever threads are left


_IDLE = {"change": "changed", "compare": "compared", "mount": "mounted"}

if __name__ == "__main__":
    main()

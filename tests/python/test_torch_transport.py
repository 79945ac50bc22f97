"""torch's one-sided transports: the contract of torch 2.15's torch.distributed._transport, whose
package is pure Python and also runs under the torch that is installed here."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import signals
import torch
import torch.distributed

import ringcoll

JOBS = Path(__file__).parent / "jobs"
# The smallest wheel that has the package. Its compiled part is for another system: never imported.
WHEEL = "torch==2.15.0"
SHA256 = "e808b63d616a43b326e1a5677d45a2e5babe7a8ce27edb03ddb48e7dd9b6d663"
TAGS = ("--platform", "macosx_14_0_arm64", "--python-version", "3.11", "--implementation", "cp")
PACKAGE = "torch.distributed._transport"
ENTRY = ("ringcoll", "ringcoll.torch_transport:RingcollTransport")
DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def download(folder: Path) -> Path:
    """torch/distributed of the wheel, the package alone. Skips the test if it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    # Constraints are for what is installed, and this is not.
    env = {**os.environ, "PIP_CONSTRAINT": os.devnull}
    got = subprocess.run(
        [*command, *TAGS, "-d", str(folder), WHEEL], env=env, capture_output=True, text=True
    )
    if got.returncode != 0:
        pytest.skip(f"no wheel of {WHEEL} can be had: {got.stderr.strip()[-300:]}")
    (wheel,) = folder.glob("*.whl")
    with open(wheel, "rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == SHA256
    with zipfile.ZipFile(wheel) as archive:
        inside = PACKAGE.replace(".", "/") + "/"
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(inside)])
    wheel.unlink()
    return folder / "torch/distributed"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """torch's package, and the folder that it was put into, or "" if the installed torch has it."""
    folder = ""
    if importlib.util.find_spec(PACKAGE) is None:
        folder = str(download(tmp_path_factory.mktemp("torch")))
        torch.distributed.__path__.append(folder)
    sys.modules.pop("ringcoll.torch_transport", None)
    try:
        yield importlib.import_module(PACKAGE), folder
    finally:
        if folder:
            torch.distributed.__path__.remove(folder)
            for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
                del sys.modules[name]
        sys.modules.pop("ringcoll.torch_transport", None)


@pytest.fixture
def api(package: tuple[Any, str]) -> Any:
    return package[0]


@pytest.fixture
def pair(api: Any) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """``pair(**options)``: two transports of this process, connected to one another."""
    made: list[Any] = []

    def make(**options: Any) -> tuple[Any, Any]:
        two = api.new_transport("ringcoll", "cpu", **options), api.new_transport("ringcoll")
        made.extend(two)
        urls = [each.bind() for each in two]
        assert [two[0].connect(urls[1]), two[1].connect(urls[0])] == [0, 0]
        return two

    yield make
    for each in made:
        each.close(timeout=10)


@pytest.fixture(params=["here", "elsewhere"])
def peer(
    package: tuple[Any, str], request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """A process with an endpoint; also on a host of its own, to which copies take a link."""
    command = [sys.executable, "-P", str(JOBS / "transport_peer.py"), package[1]]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOLL_")}
    if request.param == "elsewhere":
        env["RINGCOLL_HOSTID"] = request.param
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    yield process
    with process:
        process.kill()


def say(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin
    assert process.stdout
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def registered(transport: Any, count: int = 1 << 16) -> tuple[torch.Tensor, Any]:
    tensor = torch.arange(count, dtype=torch.float32)
    return tensor, transport.register_memory(tensor)


# ---- Without the package ----


@pytest.mark.parametrize(
    ("hidden", "said"), [("torch.distributed._transport", "has no"), ("torch", "is not installed")]
)
def test_it_says_what_is_missing(hidden, said):
    program = (
        f"import sys; sys.modules[{hidden!r}] = None\n"
        "from ringcoll.torch_transport import RingcollTransport\n"
        "assert not RingcollTransport.supported()\n"
        "RingcollTransport('cpu')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ringcoll's transport needs torch 2.15 or later"), last
    assert said in last


def test_the_entry_point_is_installed():
    found = importlib.metadata.entry_points(group="torch.distributed.transports")
    assert ENTRY in [(each.name, each.value) for each in found]


# ---- The registry ----


def test_it_is_found_by_its_name(api):
    assert "ringcoll" in api.available_transports()
    with api.new_transport("RingColl", "cpu", timeout=3.0) as transport:
        assert isinstance(transport, api.Transport)
        assert transport.supported()
        assert transport.device == torch.device("cpu")
    with api.new_transport("ringcoll") as transport:
        assert transport.device is None
    with pytest.raises(ValueError, match="already registered"):
        api.register_transport("ringcoll", type(transport))


def test_what_it_cannot_do_is_refused_when_it_is_made(api):
    for options in ({"device": "cuda"}, {"timeout": float("nan")}, {"flows": 2}):
        with pytest.raises(RuntimeError, match="failed to create transport"):
            api.new_transport("ringcoll", **options)


# ---- Registered memory ----


def test_memory_has_the_types_of_the_contract(api, pair):
    transport, _ = pair()
    _, memory = registered(transport)
    view, mutable = memory.to_view(), memory.to_mutable_view(4, 8)
    assert isinstance(memory, api.Memory)
    assert isinstance(view, api.MemoryView)
    assert not isinstance(view, api.MutableMemoryView)
    assert isinstance(mutable, api.MutableMemoryView)
    assert (view.size(), mutable.size()) == (4 << 16, 8)
    assert isinstance(memory.to_remote_buffer(), api.RemoteBuffer)
    for offset, length in ((-1, None), (0, (4 << 16) + 1), (4 << 16, 1), (8, -1)):
        with pytest.raises(ValueError, match="bytes from"):
            memory.to_view(offset, length)


def test_a_remote_buffer_is_the_same_after_the_way_through_bytes(pair):
    transport, _ = pair()
    buffer = registered(transport)[1].to_remote_buffer()
    data = buffer.serialize()
    assert type(buffer).deserialize(data) == buffer
    for bad in (b"", b"not a buffer", data[:-1], data[:12], b"x" + data, data[:-1] + b"\0"):
        with pytest.raises(ValueError, match=r"ringcoll's transport|handle"):
            type(buffer).deserialize(bad)
    with pytest.raises(TypeError):
        type(buffer).deserialize(data.decode("latin-1"))


def test_only_contiguous_memory_of_the_cpu_is_registered(pair):
    transport, _ = pair()
    bad = [
        (torch.ones(4, 4).t(), ValueError, "contiguous"),
        (torch.ones(2, dtype=torch.complex64).conj(), ValueError, "contiguous"),
        (torch.empty(0), ValueError, "empty"),
        (torch.ones(2, device="meta"), ValueError, "meta"),
        ([1.0], TypeError, "list"),
    ]
    for tensor, error, match in bad:
        with pytest.raises(error, match=match):
            transport.register_memory(tensor)


def test_a_second_registration_shares_the_life_of_the_first(pair):
    ours, theirs = pair()
    tensor, memory = registered(ours)
    again, view = ours.register_memory(tensor), memory.to_view()
    buffer = registered(theirs)[1].to_remote_buffer()
    assert ours.write(view, buffer) == 0
    ours.unregister_memory(again)
    ours.unregister_memory(memory)
    for use in (memory.to_view, memory.to_remote_buffer, lambda: ours.write(view, buffer)):
        with pytest.raises(RuntimeError, match="unregistered"):
            use()
    assert ours.write(ours.register_memory(tensor).to_view(), buffer) == 0
    with pytest.raises(TypeError):
        theirs.unregister_memory(memory)


def test_a_peers_copy_after_the_end_of_the_registration_is_gone(pair):
    ours, theirs = pair()
    _, memory = registered(ours)
    _, target = registered(theirs)
    buffer = target.to_remote_buffer()
    theirs.unregister_memory(target)
    with pytest.raises(ringcoll.Gone):
        ours.read(memory.to_mutable_view(), buffer)


def test_memory_that_moved_is_not_copied(pair):
    ours, theirs = pair()
    tensor, memory = registered(ours)
    view = memory.to_view()
    buffer = registered(theirs)[1].to_remote_buffer()
    tensor.set_(torch.zeros(1 << 16))
    with pytest.raises(RuntimeError, match="another storage"):
        ours.write(view, buffer)


# ---- Copies ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_copied_both_ways(pair, dtype):
    ours, theirs = pair()
    source = torch.arange(1000).to(dtype)
    target = torch.zeros(1000).to(dtype)
    memory = ours.register_memory(source.requires_grad_(dtype.is_floating_point))
    buffer = theirs.register_memory(target).to_remote_buffer()
    assert ours.write(memory.to_view(), buffer) == 0
    assert target.view(torch.uint8).equal(source.detach().view(torch.uint8))
    target.view(torch.uint8).fill_(1)
    assert ours.read(memory.to_mutable_view(), buffer) == 0
    assert target.view(torch.uint8).equal(source.detach().view(torch.uint8))


def test_a_view_is_copied_and_nothing_else(pair):
    ours, theirs = pair()
    tensor, memory = registered(ours, 100)
    target = torch.full((100,), -1.0)
    remote = theirs.register_memory(target)
    assert ours.write(memory.to_view(40, 20), remote.to_remote_buffer()) == 0
    assert target[:5].equal(tensor[10:15])
    assert (target[5:] == -1).all()
    assert ours.read(memory.to_mutable_view(0, 0), remote.to_remote_buffer()) == 0
    assert ours.write(memory.to_view(0, 0), remote.to_remote_buffer(), async_op=True).wait()
    ours.read(memory.to_mutable_view(396), remote.to_remote_buffer())
    assert tensor[98:].tolist() == [98, 10]


def test_what_is_wrong_is_refused_before_it_is_copied(pair, api):
    ours, theirs = pair()
    _, memory = registered(ours, 100)
    remote = registered(theirs, 50)[1].to_remote_buffer()
    with pytest.raises(ValueError, match="too many"):
        ours.write(memory.to_view(), remote)
    with pytest.raises(TypeError, match="to_mutable_view"):
        ours.read(memory.to_view(), remote)
    with pytest.raises(TypeError, match="another transport"):
        theirs.write(memory.to_view(), remote)
    with pytest.raises(ValueError, match="not of the peer"):
        ours.write(memory.to_view(0, 4), memory.to_remote_buffer())
    with pytest.raises(TypeError, match="remote buffer"):
        ours.write(memory.to_view(), remote.serialize())
    with api.new_transport("ringcoll") as lonely:
        _, memory = registered(lonely, 10)
        with pytest.raises(RuntimeError, match="not connected"):
            lonely.write(memory.to_view(), remote)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_time(pair, timeout):
    ours, theirs = pair()
    tensor, memory = registered(ours, 100)
    target, remote = registered(theirs, 100)
    target.zero_()
    buffer = remote.to_remote_buffer()
    calls: list[Callable[[], Any]] = [
        lambda: ours.write(memory.to_view(), buffer, timeout=timeout),
        lambda: ours.write(memory.to_view(), buffer, async_op=True, timeout=timeout),
        lambda: asyncio.run(ours.write_async(memory.to_view(), buffer, timeout=timeout)),
        lambda: ours.register_memory(tensor, timeout=timeout),
        lambda: ours.bind(timeout=timeout),
        lambda: ours.close(timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="finite"):
            call()
    assert (target == 0).all()


# ---- Work ----


def test_work_tells_of_its_end(api, pair):
    ours, theirs = pair()
    tensor, memory = registered(ours, 1 << 20)
    target, remote = registered(theirs, 1 << 20)
    target.zero_()
    work = ours.write(memory.to_view(), remote.to_remote_buffer(), async_op=True)
    assert isinstance(work, api.Work)
    assert work.wait()
    assert work.wait(timedelta(seconds=1))
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.get_future().wait() == []
    assert work.result() == []
    assert target.equal(tensor)


def test_who_waits_for_the_future_finds_the_work_completed(pair):
    ours, theirs = pair()
    _, memory = registered(ours, 1 << 18)
    buffer = registered(theirs, 1 << 18)[1].to_remote_buffer()
    for _ in range(100):
        work = ours.write(memory.to_view(), buffer, async_op=True)
        work.get_future().wait()
        assert work.is_completed()
        assert work.is_success()


def test_the_error_of_a_copy_is_that_of_its_work(pair):
    ours, theirs = pair()
    _, memory = registered(ours)
    _, remote = registered(theirs)
    buffer = remote.to_remote_buffer()
    theirs.unregister_memory(remote)
    work = ours.read(memory.to_mutable_view(), buffer, async_op=True)
    with pytest.raises(ringcoll.Gone):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), ringcoll.Gone)
    with pytest.raises(ringcoll.Gone):
        work.get_future().wait()
    with pytest.raises(ringcoll.Gone):
        asyncio.run(ours.read_async(memory.to_mutable_view(), buffer))


def test_coroutines_copy_side_by_side(api, pair):
    ours, theirs = pair()
    tensor, memory = registered(ours, 1 << 18)
    target, remote = registered(theirs, 1 << 18)
    target.zero_()
    buffer, view = remote.to_remote_buffer(), memory.to_view()

    async def run() -> None:
        await asyncio.gather(*(ours.write_async(view, buffer, timeout=20) for _ in range(8)))
        works = [ours.read(memory.to_mutable_view(), buffer, async_op=True) for _ in range(8)]
        await api.wait_all(works, timeout=20)
        await ours.close_async(timeout=20)

    asyncio.run(run())
    assert target.equal(tensor)
    with pytest.raises(RuntimeError, match="closed"):
        ours.write(view, buffer)


def test_close_waits_for_copies_and_refuses_new_ones(pair):
    ours, theirs = pair()
    _, memory = registered(ours, 1 << 22)
    _, remote = registered(theirs, 1 << 22)
    buffer, view = remote.to_remote_buffer(), memory.to_view()
    works = [ours.write(view, buffer, async_op=True) for _ in range(30)]
    with suppress(TimeoutError):  # they may have ended
        ours.close(timeout=0)
    for use in (lambda: ours.write(view, buffer, async_op=True), ours.bind):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    ours.close()
    assert all(work.is_completed() and work.is_success() for work in works)
    ours.close()


def test_pending_copies_hold_their_registration(pair):
    ours, theirs = pair()
    _, memory = registered(ours, 1 << 22)
    _, remote = registered(theirs, 1 << 22)
    works = [
        ours.write(memory.to_view(), remote.to_remote_buffer(), async_op=True) for _ in range(30)
    ]
    if not works[-1].is_completed():
        with pytest.raises(RuntimeError, match="pending"):
            ours.unregister_memory(memory)
    for work in works:
        work.wait()
    ours.unregister_memory(memory)


def test_a_callback_must_not_wait(pair):
    ours, theirs = pair()
    _, memory = registered(ours, 1 << 22)
    _, remote = registered(theirs, 1 << 22)
    view, buffer = memory.to_view(), remote.to_remote_buffer()
    refused: list[str] = []
    in_thread = []

    def callback(_: Any) -> Any:
        in_thread.append(threading.current_thread() is not threading.main_thread())
        for call in (lambda: ours.write(view, buffer), works[-1].wait, ours.close):
            if works[-1].is_completed():
                break
            try:
                call()
            except RuntimeError as error:
                refused.append(str(error))
        return ours.write(memory.to_view(0, 8), buffer, async_op=True)

    works = [ours.write(view, buffer, async_op=True) for _ in range(30)]
    begun = works[0].get_future().then(callback).wait()
    assert begun.wait()
    if all(in_thread):
        assert len(refused) in (0, 3)
        assert all("callback" in text for text in refused)
    assert works[-1].wait()


def test_a_copy_keeps_its_memory(pair):
    ours, theirs = pair()
    tensor, memory = registered(ours, 1 << 22)
    target, remote = registered(theirs, 1 << 22)
    gone = weakref.ref(memory)
    work = ours.write(memory.to_view(), remote.to_remote_buffer(), async_op=True)
    expected = tensor.clone()
    del tensor, memory
    gc.collect()
    assert gone() is None
    work.wait()
    assert target.equal(expected)


# ---- Two processes ----


def test_processes_copy_from_one_another(api, peer):
    assert peer.stdout
    url, buffer = map(bytes.fromhex, peer.stdout.readline().split())
    with api.new_transport("ringcoll", "cpu", timeout=20) as transport:
        assert not transport.connected()
        transport.connect(url)
        assert transport.connected()
        with pytest.raises(RuntimeError, match="already"):
            transport.connect(url)
        assert say(peer, f"connect {transport.bind().hex()}") == "0"
        tensor = torch.zeros(1 << 18, dtype=torch.int64)
        memory = transport.register_memory(tensor)
        remote = type(memory.to_remote_buffer()).deserialize(buffer)
        assert transport.read(memory.to_mutable_view(), remote) == 0
        assert tensor.equal(torch.arange(1 << 18))
        tensor.fill_(3)
        assert transport.write(memory.to_view(), remote, async_op=True).wait()
        assert int(say(peer, "sum")) == 3 << 18
        assert peer.stdin
        peer.stdin.write("quit\n")
        peer.stdin.flush()
        assert peer.wait(20) == 0
        with pytest.raises(ringcoll.PeerLost):
            transport.read(memory.to_mutable_view(), remote)


def test_a_killed_peer_is_an_error_within_seconds(api, peer):
    assert peer.stdout
    url, buffer = map(bytes.fromhex, peer.stdout.readline().split())
    with api.new_transport("ringcoll", "cpu") as transport:
        transport.connect(url)
        _, memory = registered(transport)
        remote = type(memory.to_remote_buffer()).deserialize(buffer)
        peer.kill()
        peer.wait()
        begin = time.monotonic()
        with pytest.raises(ringcoll.PeerLost):
            transport.read(memory.to_mutable_view(), remote)
        while transport.connected():
            assert time.monotonic() < begin + 5
            time.sleep(0.01)


@pytest.mark.parametrize("peer", ["elsewhere"], indirect=True)
def test_a_timeout_ends_the_wait_for_a_stopped_peer(api, peer):
    assert peer.stdout
    url, buffer = map(bytes.fromhex, peer.stdout.readline().split())
    with api.new_transport("ringcoll", "cpu") as transport:
        transport.connect(url)
        tensor = torch.zeros(1 << 18, dtype=torch.int64)
        memory = transport.register_memory(tensor)
        remote = type(memory.to_remote_buffer()).deserialize(buffer)
        transport.read(memory.to_mutable_view(), remote)
        tensor.zero_()
        signals.send(peer, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            transport.read(memory.to_mutable_view(), remote, timeout=0.3)
        work = transport.read(memory.to_mutable_view(), remote, async_op=True, timeout=0.3)
        for wait in (work.wait, lambda: work.wait(timedelta(seconds=0.2))):
            with pytest.raises(TimeoutError):
                wait()
        with pytest.raises(TimeoutError):
            transport.close(timeout=0.2)
        assert time.monotonic() < begin + 5
        assert not work.is_completed()
        peer.send_signal(signal.SIGCONT)
        assert work.wait(timedelta(seconds=20))
        assert tensor.equal(torch.arange(1 << 18))


def test_it_cannot_connect_to_what_is_not_there(api, peer):
    assert peer.stdout
    url, _ = map(bytes.fromhex, peer.stdout.readline().split())
    with api.new_transport("ringcoll", "cpu") as transport:
        for bad in (b"", b"tcp://127.0.0.1:1", url[:-1], url.replace(b'"key"', b'"kex"')):
            with pytest.raises(ValueError, match="bind"):
                transport.connect(bad)
        peer.kill()
        peer.wait()
        begin = time.monotonic()
        with pytest.raises(ringcoll.PeerLost):
            transport.connect(url)
        assert time.monotonic() < begin + 10
        assert not transport.connected()


def test_ranks_meet_over_a_store(api):
    store = torch.distributed.HashStore()
    found: dict[int, Any] = {}

    def meet(rank: int) -> None:
        found[rank] = api.new_transport_rank(
            "ringcoll", "cpu", store=store, rank=rank, peer_rank=1 - rank
        )

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with found[0] as ours, found[1] as theirs:
        tensor, memory = registered(ours, 100)
        target, remote = registered(theirs, 100)
        target.zero_()
        ours.write(memory.to_view(), remote.to_remote_buffer())
        assert target.equal(tensor)

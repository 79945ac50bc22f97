"""The oracle of ci/soak, and that whatever is wrong with a result is noticed."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import astuple
from types import SimpleNamespace

import numpy as np
import pytest
from support.soak import mail, script
from support.soak.buffers import Buffer, Wrong
from support.soak.collectives import Made
from support.soak.data import DTYPES
from support.soak.job import Job
from support.soak.oracle import Oracle, reduced
from support.soak.rank import Verdict, check_growth
from support.soak.script import ANY, Call, Exchange, Message, Plan, Receive
from support.soak.usage import Usage

import ringcoll


class Fake:
    """A communicator whose collectives give what the oracle wants; then `spoil` is called."""

    rank, size, name = 1, 3, "fake"

    def __init__(self, call, spoil=lambda made: None):
        self._call = call
        self._spoil = spoil
        setattr(self, call.collective, self._run)

    def _run(self, x=None, out=None, **_):
        wanted = Oracle(self._call, self.size, 0).outputs(self.rank)
        if out is None:
            out = [each.copy() for each in wanted]
        else:
            out = out if isinstance(out, list) else [out]
            for to, value in zip(out, wanted, strict=True):
                to[:] = value
        self._spoil(SimpleNamespace(x=x, out=out))
        return out if self._call.fused else (out[0] if out else None)


CALLS = [
    Call(1, 0, "allreduce", "float32", "average", tensors=(7,)),
    Call(2, 0, "allreduce", "bfloat16", "product", tensors=(7, 3), fused=True),
    Call(3, 0, "allreduce", "int8", "sum", tensors=(9,), in_place=True),
    Call(4, 0, "reduce", "uint64", "max", root=1, tensors=(5,)),
    Call(5, 0, "broadcast", "float16", root=2, tensors=(6,)),
    Call(6, 0, "allgather", "int32", counts=(1, 4, 2), equal=False),
    Call(7, 0, "gather", "int16", root=1, counts=(2, 2, 2), in_place=True),
    Call(8, 0, "scatter", "bool", root=0, counts=(3, 3, 3)),
    Call(9, 0, "reduce_scatter", "float64", "min", counts=(1, 5, 0), equal=False),
    Call(12, 0, "scan", "int64", "product", tensors=(4, 3), fused=True),
    Call(13, 0, "exscan", "float32", "min", tensors=(6,)),
    Call(11, 0, "alltoall", "uint8", matrix=((1, 2, 3), (4, 5, 6), (7, 8, 9)), equal=False),
]


def one_bit(made):
    made.out[-1].view(np.uint8)[-1] ^= 1


def beside(made):
    """One byte after the end of an output, or of an input."""
    first = made.x[0] if isinstance(made.x, list) else made.x
    base = (made.out[0] if made.out[0].base is not None else first).base
    while base.base is not None:
        base = base.base
    base[-1] ^= 1


def input_too(made):
    x = made.x[0] if isinstance(made.x, list) else made.x
    x.view(np.uint8)[0] ^= 1


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.collective}-{call.dtype}")
def test_what_is_right_passes_and_what_is_not_does_not(call):
    Made(call, Fake(call), 0).run()
    with pytest.raises(Wrong, match=r"1 of \d+ elements are wrong"):
        Made(call, Fake(call, one_bit), 0).run()
    with pytest.raises(Wrong, match="memory after the tensor"):
        Made(call, Fake(call, beside), 0).run()


@pytest.mark.parametrize("call", [c for c in CALLS if not c.in_place and c.collective != "scatter"])
def test_an_input_that_is_written_to_is_noticed(call):
    with pytest.raises(Wrong, match="an input was changed"):
        Made(call, Fake(call, input_too), 0).run()


def test_another_run_of_a_call_has_other_tensors():
    call = CALLS[5]
    made = Made(call, Fake(call), 1)
    with pytest.raises(Wrong, match="elements are wrong"):
        made.run()


@pytest.mark.parametrize(
    ("dtype", "op", "scales", "parts", "wanted"),
    [
        ("int8", "sum", (1, 1), ([100], [100], [1]), [-55]),
        ("int32", "average", (1, 1), ([-1], [-1], [-3]), [-1]),
        ("int32", "average", (1, 1), ([49], [49], [49]), [49]),
        ("int16", "sum", (0.5, 1), ([-3], [3], [5]), [2]),
        ("uint8", "sum", (1, 2), ([100], [100], [1]), [255]),
        ("bool", "sum", (1, 1), ([0], [1], [0]), [True]),
        ("bool", "product", (1, 1), ([1], [1], [0]), [False]),
        ("bool", "average", (1, 1), ([1], [1], [1]), [False]),
        ("float32", "average", (1, 1), ([1], [0], [0]), [np.float32(1) * np.float32(1 / 3)]),
        ("float16", "min", (1, 0.25), ([4], [-8], [2]), [-2]),
        ("uint16", "bit_and", (1, 1), ([7], [6], [12]), [4]),
    ],
)
def test_reductions_are_those_that_are_documented(dtype, op, scales, parts, wanted):
    call = Call(0, 0, "allreduce", dtype, op, prescale=scales[0], postscale=scales[1])
    kind = np.dtype(dtype)
    found = reduced(call, [np.array(part).astype(kind) for part in parts])
    assert found.dtype == kind
    assert found.tolist() == np.array(wanted).astype(kind).tolist()


@pytest.mark.parametrize(
    ("dtype", "op", "first", "second"),
    [
        ("int8", "sum", 0, 3),
        ("uint64", "min", 2**64 - 1, 3),
        ("int16", "max", -(2**15), 3),
        ("bfloat16", "max", -np.inf, 3),
        ("uint8", "bit_and", 255, 3),
        ("bool", "product", True, True),
    ],
)
def test_the_first_rank_of_an_exscan_has_what_changes_nothing(dtype, op, first, second):
    call = Call(0, 0, "exscan", dtype, op, postscale=1, tensors=(1,))
    oracle = Oracle(call, 3, 0)
    oracle.inputs = lambda rank: [np.array([3 + rank]).astype(DTYPES[dtype])]
    assert [oracle.outputs(rank)[0].tolist() for rank in (0, 1)] == [[first], [second]]


MESSAGES = (
    Message(0, source=0, target=1, tag=64, size=10, blocking=False),
    Message(1, source=2, target=1, tag=64, size=20, blocking=False),
    Message(2, source=0, target=1, tag=64, size=30, blocking=False),
)
EXCHANGE = Exchange(
    1, 0, MESSAGES, (Receive(1, ANY, 64, 40, (0, 1, 2), False),) * 3, early=(1,), kept=False
)


def deliver(order, change=lambda at, buffer, got: got):
    inbox = mail.Inbox(EXCHANGE, SimpleNamespace(rank=1, name="fake"), 0)
    for at, number in enumerate(order):
        message = MESSAGES[number]
        inbox.buffer(at)[: message.size] = mail.sent_bytes(EXCHANGE, message, 0)
        got = ringcoll.Received(message.source, message.tag, message.size, message.size)
        inbox.taker(at)(change(at, inbox.buffer(at), got))


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1)])
def test_messages_of_several_senders_may_come_in_any_order(order):
    deliver(order)


@pytest.mark.parametrize("order", [(2, 0, 1), (2, 1, 0), (1, 2, 0)])
def test_messages_of_one_sender_may_not(order):
    with pytest.raises(Wrong, match="instead of Message"):
        deliver(order)


def test_a_message_that_comes_twice_is_noticed():
    with pytest.raises(Wrong):
        deliver((0, 1, 1))


def test_a_message_with_a_wrong_bit_or_too_many_bytes_is_noticed():
    def bit(at, buffer, got):
        buffer[3] ^= 1
        return got

    def more(at, buffer, got):
        buffer[got.bytes] ^= 1
        return got

    with pytest.raises(Wrong, match="1 of 10 elements are wrong"):
        deliver((0, 1, 2), bit)
    with pytest.raises(Wrong, match="after the end of the message"):
        deliver((0, 1, 2), more)


def test_memory_after_and_before_a_buffer_is_guarded():
    for at in (3, -3):
        buffer = Buffer(5, np.dtype("i4"), offset=8)
        buffer.tensor[:] = 7
        buffer.check("it")
        buffer._memory[at] ^= 1
        with pytest.raises(Wrong, match=r"memory (before|after) the tensor"):
            buffer.check("it")


def test_what_grows_with_each_lap_is_noticed_and_what_grows_in_one_is_not():
    first, warm = Usage(1000, 1000, 10, 5), Usage(90000, 90000, 30, 7)
    check_growth([first, warm, warm])
    for more in (Usage(800, 0, 0, 0), Usage(0, 1600, 0, 0), Usage(0, 0, 4, 0), Usage(0, 0, 0, 2)):
        once = Usage(*map(sum, zip(astuple(warm), astuple(more), strict=True)))
        twice = Usage(*map(sum, zip(astuple(once), astuple(more), strict=True)))
        check_growth([first, warm, once, once])
        check_growth([first, warm, warm, once])
        with pytest.raises(Wrong, match="each lap does the same"):
            check_growth([first, warm, once, twice])


class Broken(Job):
    """One whose rank 1 does something else than to play its script."""

    def __init__(self, what):
        super().__init__(Plan(1, 2, "tcp", "calm", steps=5), patience_s=6)
        self.what = what

    def _be(self, rank):
        return self.what(self) if rank == 1 else super()._be(rank)


def test_a_rank_that_dies_is_noticed():
    result = Broken(lambda job: os.kill(os.getpid(), signal.SIGKILL)).run()
    assert "rank 1 ended with status 0x9" in result.failure


def test_a_rank_that_hangs_is_ended_and_its_stack_printed():
    def hang(job):
        time.sleep(600)
        return 0

    result = Broken(hang).run()
    assert "hangs" in result.failure
    assert "test_oracle.py" in result.details, result.details


def test_a_process_that_is_left_is_noticed():
    def leave(job):
        if not os.fork():
            time.sleep(60)
        return Job._be(job, 1)

    result = Broken(leave).run()
    assert "processes left running" in result.failure


def test_the_first_verdict_is_the_cause():
    def fail(job):
        found = Verdict("mine", "Wrong", "trace", 0.0)
        found.write(job._folder / "verdict.1")
        return 1

    result = Broken(fail).run()
    assert result.failure.startswith("rank 1, Wrong: mine")
    assert "--seed 1 --jobs 1 --transport tcp --profile calm --size 2" in result.command()


def test_a_verdict_is_read_as_it_was_written(tmp_path):
    verdict = Verdict("a", "b", "c", 1.5, (Usage(1, 2, 3, 4),))
    verdict.write(tmp_path / "verdict.0")
    assert Verdict.read(tmp_path / "verdict.0") == verdict
    assert json.loads((tmp_path / "verdict.0").read_text())["kind"] == "b"
    assert Verdict.read(tmp_path / "verdict.1") is None


def test_who_dies_before_the_world_is_renewed_is_known_beforehand():
    steps = (script.Die(0, 1, 0), script.Renew(1, (0, 2)), script.Die(2, 2, 0))
    story = script.Script(Plan(1, 3, "shm", "deaths", 3), {}, (0, 0, 0), steps)
    assert [story.dying(at) for at in range(4)] == [(1,), (), (2,), ()]

"""What is refused before anything is sent, with a message that names the cause; the communicator is
still good."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

import ringcoll

torch = pytest.importorskip("torch")


def read_only():
    array = np.ones(4)
    array.flags.writeable = False
    return array


class OnDevice:
    """Offers memory of a GPU by DLPack, without one being there."""

    shape = (2,)

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int),
            ("device_id", ctypes.c_int),
            ("ndim", ctypes.c_int),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("byte_offset", ctypes.c_uint64),
            ("manager", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        ]

    def __dlpack__(self):
        self.lengths = (ctypes.c_int64 * 1)(2)
        self.tensor = self.Tensor(data=0x1000, device_type=2, device_id=3, ndim=1)
        self.tensor.dtype = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
        self.tensor.shape = self.lengths
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return make(ctypes.addressof(self.tensor), b"dltensor", None)


REFUSED = [
    ("output is not contiguous", lambda w: w.allreduce(np.ones(4), out=np.ones(8)[::2])),
    ("input is not contiguous", lambda w: w.allreduce(np.ones((3, 4)).T)),
    ("input is not contiguous", lambda w: w.allreduce(torch.ones(3, 4).t())),
    ("output is not contiguous", lambda w: w.allreduce(torch.ones(4), out=torch.ones(8)[::2])),
    ("output is read-only", lambda w: w.allreduce(np.ones(4), out=read_only())),
    ("output is read-only", lambda w: w.allreduce(bytes(4), out=bytes(4))),
    ("output has 5 elements, and 4 are needed", lambda w: w.allreduce(np.ones(4), out=np.ones(5))),
    ("output has 3 elements, and 2 are needed", lambda w: w.allgather(np.ones(1), out=np.ones(3))),
    ("float64.*float32|float32.*float64", lambda w: w.allreduce(np.ones(4), out=np.ones(4, "f4"))),
    ("is on a device|lies on a device", lambda w: w.allreduce(OnDevice(), out=np.ones(2, "f4"))),
    ("cannot be borrowed.*meta", lambda w: w.allreduce(torch.ones(3, device="meta"))),
    (r"detach\(\)", lambda w: w.allreduce(torch.ones(3, requires_grad=True))),
    ("elements of type", lambda w: w.allreduce(np.ones(3, "c8"))),
    ("elements of type", lambda w: w.allreduce(np.ones(3, ">f8"))),
    ("elements of type", lambda w: w.allreduce(np.array([None]))),
    ("elements of type", lambda w: w.allreduce(np.zeros(2, "M8[s]"))),
    ("elements of type", lambda w: w.allreduce(torch.ones(2, dtype=torch.complex64))),
    ("int is no tensor", lambda w: w.allreduce(3)),
    ("int is no tensor", lambda w: w.allreduce([1, 2])),
    ("at least one", lambda w: w.allreduce([])),
    ("list of as many", lambda w: w.allreduce([np.ones(1)], out=np.ones(1))),
    ("one output for each", lambda w: w.allreduce([np.ones(1)], out=[])),
    ('"mean" is no op.*average', lambda w: w.allreduce(np.ones(3), "mean")),
    ("bit", lambda w: w.allreduce(np.ones(3), "bit_and")),
    ("prescale is nan", lambda w: w.allreduce(np.ones(3), prescale=float("nan"))),
    ("postscale is inf", lambda w: w.allreduce(np.ones(3), postscale=float("inf"))),
    ("root 2 is not a rank: ranks are 0 to 1", lambda w: w.broadcast(np.ones(3), root=2)),
    ("root -1 is not a rank", lambda w: w.gather(np.ones(3), root=-1)),
    ("3 counts.*2 ranks", lambda w: w.allgather(np.ones(3), counts=[1, 1, 1])),
    ("not be negative", lambda w: w.allgather(np.ones(3), counts=[3, -3])),
    ("input has 3 elements, and 2 are needed", lambda w: w.allgather(np.ones(3), counts=[2, 2])),
    ("one integer for each rank", lambda w: w.allgather(np.ones(3), counts=["a", "b"])),
    ("cannot be divided among 2 ranks", lambda w: w.reduce_scatter(np.ones(3))),
    ("cannot be divided among 2 ranks", lambda w: w.alltoall(np.ones(5))),
    ("or neither", lambda w: w.alltoall(np.ones(3), recv_counts=[1, 2])),
    ("or neither", lambda w: w.alltoall_async(np.ones(3), send_counts=[1, 2])),
    ("needs a|out=|root must pass", lambda w: w.scatter(None)),
    ("not both", lambda w: w.split([0], color=1)),
    ("a color is at least 0", lambda w: w.split(color=-1)),
]


def test_refused(run_ranks):
    def body(world):
        wrong = {}
        for number, (pattern, call) in enumerate(REFUSED):
            try:
                wrong[number, pattern] = f"returned {call(world)!r}"
            except ringcoll.InvalidArgument as error:
                known = isinstance(error, ValueError) and error.code == "InvalidArgument"
                if not known or not re.search(pattern, str(error)):
                    wrong[number, pattern] = repr(error)
        assert not wrong, wrong
        # Nothing was sent, nothing is poisoned: the ranks still agree.
        assert (world.allreduce(np.ones(3)) == 2).all()

    run_ranks(2, body)


def test_overlap_is_refused(run_ranks):
    def body(world):
        memory = np.arange(100.0)
        with pytest.raises(ringcoll.InvalidArgument, match="overlap"):
            world.allreduce(memory[:60], out=memory[40:])
        assert (memory == np.arange(100.0)).all()
        world.barrier()

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"rank": 0}, "together"),
        ({"rank": 2, "size": 2, "store": "file:///tmp"}, "rank 2 of 2"),
        ({"rank": -1, "size": 2, "store": "file:///tmp"}, "rank -1 of 2"),
        ({"rank": 0, "size": 2}, "RINGCOLL_STORE"),
        ({"rank": 0, "size": 1, "store": "smtp://example"}, "smtp"),
        ({"rank": 0, "size": 1, "timeout": 0}, "positive"),
        ({"rank": 0, "size": 1, "timeout": -3.0}, "positive"),
    ],
)
def test_init_refuses(run_ranks, arguments, pattern):
    def body(rank, size, store):
        with pytest.raises(ringcoll.InvalidArgument, match=pattern):
            ringcoll.init(**arguments)
        with pytest.raises(ringcoll.InvalidArgument, match=r"init\(\)"):
            ringcoll.world()

    run_ranks(1, body, connect=False)


def test_a_bad_knob_is_refused_with_its_range(run_ranks):
    def body(rank, size, store):
        with pytest.raises(ringcoll.InvalidArgument, match=r"RINGCOLL_SLOTS.*0 to 64"):
            ringcoll.init(0, 1)

    run_ranks(1, body, env={"RINGCOLL_SLOTS": "1000"}, connect=False)


def test_an_unknown_knob_is_warned_about(start_ranks):
    (outcome,) = start_ranks(1, lambda world: None, env={"RINGCOLL_TIMEOUTS": "3"}).join()
    assert outcome.exit_code == 0 and "RINGCOLL_TIMEOUT_S" in outcome.output, outcome.output

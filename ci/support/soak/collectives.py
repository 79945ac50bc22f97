"""Makes a collective call of a script on a communicator, and checks what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np

import ringcoll
from support.soak import data
from support.soak.buffers import Buffer, Wrong, difference
from support.soak.data import Array
from support.soak.oracle import Oracle, edges, same
from support.soak.script import Call


class Made:
    """A call with its tensors, before it is made: `run` or `start` makes it, `check` ends it."""

    def __init__(self, call: Call, comm: ringcoll.Communicator, run: int) -> None:
        self._call = call
        self._comm = comm
        self._oracle = Oracle(call, comm.size, run)
        self._inputs: list[Buffer] = []  # those that have to stay as they are
        self._others: list[Buffer] = []
        self._arguments: dict[str, Any] = {}
        self._out: list[Array] = []  # where results are if the library does not make them
        _PREPARE[call.collective](self)

    def run(self) -> None:
        self.check(getattr(self._comm, self._call.collective)(**self._arguments))

    def start(self) -> ringcoll.Handle[Any]:
        handle = getattr(self._comm, self._call.collective + "_async")(**self._arguments)
        assert isinstance(handle, ringcoll.Handle)
        return handle

    def check(self, result: Any) -> None:
        """Raises Wrong unless `result`, of the call, and the memory of the call are right."""
        what = f"{self._call} on rank {self._comm.rank} of {self._comm.name!r}"
        wanted = self._oracle.outputs(self._comm.rank)
        found = self._found(result) if wanted else []
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if not same(one, other):
                raise Wrong(f"{what}: tensor {at}: {difference(one, other)}")
        for buffer in (*self._inputs, *self._others):
            buffer.check(what)
        # A rank that is not the root of a broadcast or scatter has no input.
        for buffer, before in zip(self._inputs, self._oracle.inputs(self._comm.rank), strict=False):
            if not same(buffer.tensor, before):
                raise Wrong(f"{what}: an input was changed: {difference(buffer.tensor, before)}")
        for buffer in (*self._inputs, *self._others):
            buffer.spoil()

    def _found(self, result: Any) -> list[Array]:
        if self._out:
            return self._out
        return list(result) if isinstance(result, list) else [np.asarray(result)]

    # What each collective is called with.

    def vectors(self) -> None:
        """allreduce, reduce, broadcast, scan and exscan: as many tensors come out as go in."""
        call, rank = self._call, self._comm.rank
        buffers = [Buffer.of(x, call.offset) for x in self._oracle.inputs(rank)]
        rooted = call.collective in ("reduce", "broadcast")
        receives = call.collective != "reduce" or rank == call.root
        self._arguments["x"] = self._several([each.tensor for each in buffers])
        if not (call.in_place and receives):
            self._inputs = buffers
        elif call.in_place:
            self._others = buffers
            self._out = [each.tensor for each in buffers]
        if receives and not call.in_place and call.number % 2:
            self._outputs_like(call.tensors)
        if receives and self._out:
            self._arguments["out"] = self._several(self._out)
        if rooted:
            self._arguments["root"] = call.root
        if call.collective != "broadcast":
            self._scale()

    def _outputs_like(self, counts: tuple[int, ...]) -> None:
        made = [Buffer(count, data.DTYPES[self._call.dtype], self._call.offset) for count in counts]
        self._others += made
        self._out = [each.tensor for each in made]

    def _several(self, tensors: list[Array]) -> Any:
        return tensors if self._call.fused else tensors[0]

    def _scale(self) -> None:
        call = self._call
        self._arguments["op"] = call.op
        if call.prescale != 1:
            self._arguments["prescale"] = call.prescale
        if call.postscale != 1:
            self._arguments["postscale"] = call.postscale

    def gathers(self) -> None:
        """allgather and gather: what a rank gives is a part of what comes out."""
        call, rank = self._call, self._comm.rank
        mine = self._oracle.inputs(rank)[0]
        first, last = edges(call.counts)[rank : rank + 2]
        receives = call.collective == "allgather" or rank == call.root
        if call.in_place and receives:
            whole = Buffer(sum(call.counts), mine.dtype, call.offset)
            whole.tensor[first:last] = mine
            self._others.append(whole)
            self._arguments["x"] = whole.tensor[first:last]
            self._out = [whole.tensor]
        else:
            self._inputs.append(Buffer.of(mine, call.offset))
            self._arguments["x"] = self._inputs[0].tensor
            if receives and call.number % 2:
                self._outputs_like((sum(call.counts),))
        self._share_out()

    def scatters(self) -> None:
        """scatter and reduce_scatter: what comes out is a part of what goes in."""
        call, rank = self._call, self._comm.rank
        first, last = edges(call.counts)[rank : rank + 2]
        gives = call.collective == "reduce_scatter" or rank == call.root
        if gives:
            whole = Buffer.of(self._oracle.inputs(rank)[0], call.offset)
            self._arguments["x"] = whole.tensor
            (self._others if call.in_place else self._inputs).append(whole)
            if call.in_place:
                self._out = [whole.tensor[first:last]]
        else:
            self._arguments["x"] = None
        if not self._out and (call.number % 2 or not gives):
            self._outputs_like((last - first,))
        if call.collective == "reduce_scatter":
            self._scale()
        self._share_out()

    def _share_out(self) -> None:
        call = self._call
        if self._out:
            self._arguments["out"] = self._out[0]
        if not call.equal:
            self._arguments["counts"] = list(call.counts)
        if call.collective in ("gather", "scatter"):
            self._arguments["root"] = call.root

    def alltoall(self) -> None:
        call, rank = self._call, self._comm.rank
        buffer = Buffer.of(self._oracle.inputs(rank)[0], call.offset)
        (self._others if call.in_place else self._inputs).append(buffer)
        self._arguments["x"] = buffer.tensor
        received = [row[rank] for row in call.matrix]
        if call.in_place:
            self._out = [buffer.tensor]
        elif call.number % 2:
            self._outputs_like((sum(received),))
        if self._out:
            self._arguments["out"] = self._out[0]
        if not call.equal:
            self._arguments["send_counts"] = list(call.matrix[rank])
            if call.started or call.number % 4:  # else the ranks tell each other
                self._arguments["recv_counts"] = received

    def barrier(self) -> None:
        pass


_PREPARE = {
    "allreduce": Made.vectors,
    "reduce": Made.vectors,
    "broadcast": Made.vectors,
    "allgather": Made.gathers,
    "gather": Made.gathers,
    "scatter": Made.scatters,
    "reduce_scatter": Made.scatters,
    "alltoall": Made.alltoall,
    "barrier": Made.barrier,
    "scan": Made.vectors,
    "exscan": Made.vectors,
}

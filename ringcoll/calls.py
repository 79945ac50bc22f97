"""Makes calls of the C ABI from a caller's tensors: what each collective reads and writes.

Tensors are cut along their first axis. Counts are rows in this module, and elements in the C ABI.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ringcoll.errors import InvalidArgument
from ringcoll.tensors import Shape, make_like, rows_of, width_of

Counts = Sequence[int]


class Call(NamedTuple):
    """The arguments of ``_core.Comm.run`` and ``_core.Comm.start``, in order."""

    collective: str
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()
    op: str = "sum"
    root: int = 0
    counts: list[int] | None = None
    recv_counts: list[int] | None = None
    prescale: float = 1.0
    postscale: float = 1.0


class Plan(NamedTuple):
    """A call, and the result that the caller gets when it has ended."""

    call: Call
    result: Any


class Seat(NamedTuple):
    """The rank that plans a call, and the number of ranks."""

    rank: int
    size: int


def combine(collective: str, x: Any, op: str, out: Any, prescale: float, postscale: float) -> Plan:
    """Any collective in which each rank gives a vector and gets a combined one."""
    inputs, outputs, result = _pair_up(x, out)
    return Plan(
        Call(collective, inputs, outputs, op, prescale=prescale, postscale=postscale), result
    )


def reduce(
    seat: Seat, x: Any, op: str, root: int, out: Any, prescale: float, postscale: float
) -> Plan:
    if seat.rank == root:
        inputs, outputs, result = _pair_up(x, out)
    else:
        inputs = list(x) if _several(x) else [x]
        outputs, result = [None] * len(inputs), None
    return Plan(
        Call("reduce", inputs, outputs, op, root, prescale=prescale, postscale=postscale), result
    )


def broadcast(seat: Seat, x: Any, root: int, out: Any) -> Plan:
    if x is None and out is not None and seat.rank != root:
        x = out
    inputs, outputs, result = _pair_up(x, out)
    if seat.rank != root:
        inputs = [None] * len(outputs)
    return Plan(Call("broadcast", inputs, outputs, root=root), result)


def allgather(seat: Seat, x: Any, counts: Counts | None, out: Any) -> Plan:
    rows, row = rows_of(x)
    shares = _shares(counts, rows, row, seat.size)
    if out is None:
        out = make_like(x, (shares.total, *row))
    return Plan(Call("allgather", [x], [out], counts=shares.elements), out)


def gather(seat: Seat, x: Any, root: int, counts: Counts | None, out: Any) -> Plan:
    rows, row = rows_of(x)
    shares = _shares(counts, rows, row, seat.size)
    if seat.rank != root:
        out = None
    elif out is None:
        out = make_like(x, (shares.total, *row))
    return Plan(Call("gather", [x], [out], root=root, counts=shares.elements), out)


def scatter(seat: Seat, x: Any, root: int, counts: Counts | None, out: Any) -> Plan:
    if seat.rank != root:
        x = None
        if out is None:
            raise InvalidArgument(
                "scatter: ranks other than the root must pass out=, into which they receive"
            )
    elif x is None:
        raise InvalidArgument("scatter: the root must pass the tensor to scatter")
    if x is None:
        rows, row = rows_of(out)
        shares = _shares(counts, rows, row, seat.size)
    else:
        rows, row = rows_of(x)
        shares = _shares(counts, _divided("scatter", rows, counts, seat.size), row, seat.size)
        if out is None:
            out = make_like(x, (shares.rows[seat.rank], *row))
    return Plan(Call("scatter", [x], [out], root=root, counts=shares.elements), out)


def reduce_scatter(
    seat: Seat, x: Any, op: str, counts: Counts | None, out: Any, prescale: float, postscale: float
) -> Plan:
    rows, row = rows_of(x)
    shares = _shares(counts, _divided("reduce_scatter", rows, counts, seat.size), row, seat.size)
    if out is None:
        out = make_like(x, (shares.rows[seat.rank], *row))
    call = Call(
        "reduce_scatter",
        [x],
        [out],
        op,
        counts=shares.elements,
        prescale=prescale,
        postscale=postscale,
    )
    return Plan(call, out)


def alltoall(
    seat: Seat, x: Any, send_counts: Counts | None, recv_counts: Counts | None, out: Any
) -> Plan:
    if (send_counts is None) != (recv_counts is None):
        raise InvalidArgument("alltoall: pass send_counts with recv_counts, or neither")
    rows, row = rows_of(x)
    sent = _shares(send_counts, _divided("alltoall", rows, send_counts, seat.size), row, seat.size)
    received = sent if recv_counts is None else _shares(recv_counts, 0, row, seat.size)
    if out is None:
        out = make_like(x, (received.total, *row))
    call = Call("alltoall", [x], [out], counts=sent.elements, recv_counts=received.elements)
    return Plan(call, out)


class _Shares(NamedTuple):
    """How the first axis is divided among the ranks."""

    rows: list[int]  # of each part, by rank
    total: int  # rows of all parts
    elements: list[int] | None  # of each part, by rank; None: all parts are equal


def _shares(counts: Counts | None, each: int, row: Shape, size: int) -> _Shares:
    if counts is None:
        return _Shares([each] * size, each * size, None)
    rows = _integers(counts)
    if len(rows) != size:
        raise InvalidArgument(
            f"{len(rows)} counts were passed, and the communicator has {size} ranks"
        )
    if min(rows) < 0:
        raise InvalidArgument(f"counts must not be negative: {rows}")
    width = width_of(row)
    return _Shares(rows, sum(rows), [count * width for count in rows])


def _integers(counts: Iterable[Any]) -> list[int]:
    try:
        return [int(count) for count in counts]
    except (TypeError, ValueError):
        raise InvalidArgument(f"counts must be one integer for each rank, not {counts!r}") from None


def _divided(collective: str, rows: int, counts: Counts | None, size: int) -> int:
    if counts is None and rows % size != 0:
        raise InvalidArgument(
            f"{collective}: a first axis of {rows} cannot be divided among {size} ranks equally: "
            "pass counts"
        )
    return rows // size


def _several(x: Any) -> bool:
    return isinstance(x, (list, tuple))


def _pair_up(x: Any, out: Any) -> tuple[list[Any], list[Any], Any]:
    """Returns inputs, outputs and the result, for one tensor or a list of tensors."""
    if not _several(x):
        made = make_like(x) if out is None else out
        return [x], [made], made
    if out is None:
        out = [make_like(each) for each in x]
    elif not _several(out):
        raise InvalidArgument(f"{len(x)} tensors were passed, so out must be a list of as many")
    return list(x), list(out), out

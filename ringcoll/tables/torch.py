"""Parameter tables in programs of torch: an embedding whose rows live in a table, and an optimizer
for outer steps. Tensors are those of the CPU.

>>> embedding = Embedding(store.table("words", row_shape=64, rule=ringcoll.rules.Adagrad(lr=0.1)))
>>> loss_of(embedding(ids)).backward()
>>> embedding.step()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from ringcoll import rules
from ringcoll.errors import InvalidArgument
from ringcoll.tables.gradients import Gradients
from ringcoll.tables.table import Table, TableCall

if TYPE_CHECKING:
    from ringcoll.weights.store import Store

__all__ = ["Embedding", "OuterOptimizer"]

_MODES = (None, "sum", "mean")


class _Batch(NamedTuple):
    """Which rows a tensor of ids names. ``places`` has the shape of the ids, and says which of
    ``ids``, where each is once, stands there."""

    given: torch.Tensor
    ids: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, given: torch.Tensor) -> _Batch:
        ids, places = torch.unique(given, return_inverse=True)
        return cls(given, ids, places)


class _Pull:
    """Rows that are on their way. ``padding`` is the id whose row is not asked for, but zero."""

    def __init__(self, table: Table, batch: _Batch, padding: int | None) -> None:
        self.batch, self.clock = batch, table.clock
        assert table.row_shape is not None
        shape = (len(batch.ids), *table.row_shape)
        self._rows = torch.zeros(shape, dtype=getattr(torch, table.dtype))
        self.wanted = batch.ids if padding is None else batch.ids[batch.ids != padding]
        self._into = self._rows
        if len(self.wanted) < len(batch.ids):
            self._into = torch.empty((len(self.wanted), *shape[1:]), dtype=self._rows.dtype)
        self._call: TableCall = table.pull_async(self.wanted, out=self._into)

    def wait(self, padding: int | None) -> torch.Tensor:
        """A row for each id of the batch."""
        self._call.wait()
        if self._into is not self._rows:
            self._rows[self.batch.ids != padding] = self._into
        return self._rows


class Embedding(torch.nn.Module):
    """An embedding whose rows live in a sparse table: the module has no weight, and its state dict
    has no rows. Any integer of 64 bits is the id of a row.

    ``forward`` pulls each row of its ids once. In training, backward leaves the gradients of these
    rows here, and :meth:`step` pushes those of all passes since the last step as one push, to which
    the rule of the table is applied. Passes without a backward push nothing. In ``eval()`` and
    under ``torch.no_grad()`` nothing is kept.

    ``padding_idx`` is an id that stands for no row: it gives zeros, is not pulled, and has no
    gradient. With ``mode`` "sum" or "mean" the module sums up bags of rows, as
    ``torch.nn.EmbeddingBag`` does.
    """

    def __init__(
        self, table: Table, padding_idx: int | None = None, mode: str | None = None
    ) -> None:
        super().__init__()
        if table.row_shape is None or len(table.row_shape) != 1 or "float" not in table.dtype:
            raise InvalidArgument(
                f"an embedding wants a sparse table with rows of one dimension, such as "
                f"row_shape=64, and a floating-point type, not {table!r}"
            )
        if mode not in _MODES:
            raise InvalidArgument(f'mode={mode!r}: it is None, "sum" or "mean"')
        self.table, self.padding_idx, self.mode = table, padding_idx, mode
        self._gradients = Gradients(table)
        self._passes: list[tuple[_Batch, torch.Tensor]] = []
        self._next: _Batch | None = None  # is to be pulled at the next clock
        self._pull: _Pull | None = None
        self._used = False  # since the last step

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """The rows of ids, in their shape with one more dimension; or, with a mode, one row for
        each bag: for each row of ``ids``, or with ``offsets`` for each part of ``ids``."""
        pull = self._take(ids) or _Pull(self.table, _Batch.of(ids), self.padding_idx)
        batch, rows = pull.batch, pull.wait(self.padding_idx)
        if self.training and torch.is_grad_enabled():
            self._used = True
            rows.requires_grad_()
            self._passes.append((batch, rows))
        places, padding = batch.places, self._place_of_padding(batch)
        if self.mode is None:
            return functional.embedding(places, rows, padding)
        return functional.embedding_bag(
            places, rows, offsets, mode=self.mode, padding_idx=padding, include_last_offset=False
        )

    def prefetch(self, ids: torch.Tensor) -> None:
        """Starts to pull the rows of the next batch. The next ``forward`` with the same ids uses
        them; another one pulls its own.

        Rows are never older than the table's staleness allows. If the table has clocks, rows for
        the next step can be pulled only once this step has ended: :meth:`step` starts the pull
        then, and what comes before the next forward runs beside it. Without clocks the pull starts
        now, and lacks the push of this step."""
        batch = _Batch.of(ids.clone())
        self._pull = self._next = None
        if self.table.clock is not None and self._used:
            self._next = batch
        else:
            self._pull = _Pull(self.table, batch, self.padding_idx)

    def step(self, scale: float = 1.0, timeout: float | None = None) -> None:
        """Pushes the gradients, times ``scale``: 1 / workers makes their sum a mean, as Horovod
        averages those of other parameters. If the table has clocks, this finishes the worker's
        clock. If it has none, the push is only started: ``table.flush()`` waits for it."""
        passes, self._passes = self._passes, []
        for batch, rows in passes:
            if rows.grad is not None:
                kept, grad = batch.ids, rows.grad
                if self._place_of_padding(batch) is not None:
                    real = kept != self.padding_idx
                    kept, grad = kept[real], grad[real]
                self._gradients.add(kept, grad)
        self._used = False
        self._gradients.push(scale, timeout)
        if self._next is not None:
            self._pull = _Pull(self.table, self._next, self.padding_idx)
            self._next = None

    def gradients(self) -> list[torch.Tensor]:
        """The gradients that the next step will push, one tensor of rows for each pass. They may
        be changed in place, such as to clip them."""
        return [rows.grad for _, rows in self._passes if rows.grad is not None]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the passes since the last step, so that they push nothing."""
        super().zero_grad(set_to_none)
        self._passes = []

    def extra_repr(self) -> str:
        return f"{self.table!r}, padding_idx={self.padding_idx}, mode={self.mode}"

    def _take(self, ids: torch.Tensor) -> _Pull | None:
        """The rows of a prefetch, if they are those of these ids at this clock."""
        pull = self._pull
        if pull is None or pull.clock != self.table.clock or not pull.batch.given.equal(ids):
            return None
        self._pull = None
        return pull

    def _place_of_padding(self, batch: _Batch) -> int | None:
        if self.padding_idx is None:
            return None
        found = (batch.ids == self.padding_idx).nonzero()
        return int(found) if len(found) else None


class OuterOptimizer:
    """Outer steps of DiLoCo: each worker trains alone for ``every`` steps of any optimizer, and
    then pushes how far its weights have moved. The servers apply the mean of these moves, as a
    gradient, with Nesterov's momentum, and all workers go on from the new weights.

    >>> outer = OuterOptimizer(store, "outer", model.parameters(), every=500)
    >>> for batch in data:
    ...     train_step(model, batch)  # with an optimizer of its own, which keeps its state
    ...     outer.step()

    All workers begin with the weights of one of them. Those of all parameters are one dense table,
    as one row of numbers: an exchange is then one request to each shard, whatever the number of
    parameters, and servers have equal shares. The table has what is to be added to the weights of
    the beginning, which are in a second table, named ``<name>.start``: so a worker that comes later
    finds both.

    With ``staleness=0`` an outer step is that of all workers, and has the same bits on each.
    Otherwise the servers apply each move when it comes: with ``staleness=k`` the fastest worker is
    at most k outer steps ahead, and with None nobody waits. ``quorum`` and ``grace_s`` are those of
    :meth:`ringcoll.Store.table`: a worker that is too slow for a clock loses its move, and goes on
    at the current clock.

    Douillard et al., *DiLoCo: Distributed Low-Communication Training of Language Models*, 2023.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        parameters: Iterable[torch.nn.Parameter],
        every: int,
        lr: float = 0.7,
        momentum: float = 0.9,
        staleness: int | None = 0,
        quorum: int | None = None,
        grace_s: float = 0.0,
        timeout: float | None = None,
    ) -> None:
        self._parameters = list(parameters)
        if not self._parameters or any(not p.is_floating_point() for p in self._parameters):
            raise InvalidArgument("parameters= wants floating-point parameters, at least one")
        if every < 1:
            raise InvalidArgument(f"every={every}: it is a number of inner steps, at least 1")
        self.every, self._timeout, self._inner = every, timeout, 0
        self._has_quorum = quorum is not None
        has_double = any(p.dtype == torch.float64 for p in self._parameters)
        dtype = torch.float64 if has_double else torch.float32
        self._now = torch.empty(sum(p.numel() for p in self._parameters), dtype=dtype)
        self._move = torch.empty_like(self._now)
        shape = tuple(self._now.shape)
        options: dict[str, Any] = {"dtype": dtype, "timeout": timeout}
        start = store.table(f"{name}.start", shape, rule=rules.Assign(), staleness=0, **options)
        rule = rules.SGD(lr=lr, momentum=momentum, nesterov=momentum > 0)
        clocks: dict[str, Any] = {"staleness": staleness, "quorum": quorum, "grace_s": grace_s}
        self.table = store.table(name, shape, rule=rule, **clocks, **options)
        self._start = self._agree(start)
        if staleness is not None:
            self.table.join(timeout)
        self._go_on()

    def step(self, share: float | None = None) -> bool:
        """To be called after each inner step. Every ``every``-th call is an outer step: True."""
        self._inner += 1
        if self._inner < self.every:
            return False
        self.exchange(share)
        return True

    def exchange(self, share: float | None = None) -> None:
        """Does an outer step now. ``share`` is what the move of this worker counts for: by default
        1 / workers, so that servers apply the mean. To weigh by tokens, each worker passes its
        tokens divided by those of all. If this raises, the weights here are as they were; the move
        may have been applied, so this should not be called again before training has gone on."""
        if share is None or self._has_quorum:
            info = self.table.info(self._timeout)
            share = 1.0 / max(1, len(info["workers"])) if share is None else share
            while self._has_quorum and (self.table.clock or 0) < info["clock"]:
                self.table.tick(self._timeout)  # that clock is complete without this worker
        self._gather()
        torch.sub(self._now, self._move, out=self._move).mul_(share)
        self.table.push(None, self._move, timeout=self._timeout)
        if self.table.clock is not None:
            self.table.tick(self._timeout)
        self._go_on()
        self._inner = 0

    def _agree(self, start: Table) -> torch.Tensor:
        """The weights of one of the workers that begin, the same for all that ever come. Each
        pushes its own to clock 0, and of these the table takes the last worker's."""
        start.join(self._timeout)
        if start.clock == 0:
            self._gather()
            start.push(None, self._move, timeout=self._timeout)
            start.tick(self._timeout)
        weights: torch.Tensor = start.pull(out=torch.empty_like(self._move), timeout=self._timeout)
        return weights

    def _gather(self) -> None:
        """Copies the parameters to the buffer of moves."""
        for part, parameter in self._parts(self._move):
            part.copy_(parameter.detach())

    def _go_on(self) -> None:
        """Sets the parameters to what the table has. What a parameter of less precision cannot hold
        is no move of this worker."""
        self.table.pull(out=self._move, timeout=self._timeout)
        torch.add(self._start, self._move, out=self._now)
        with torch.no_grad():
            for part, parameter in self._parts(self._now):
                parameter.copy_(part)
                part.copy_(parameter)

    def _parts(self, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.nn.Parameter]]:
        """The part of a flat tensor that each parameter has."""
        sizes = [parameter.numel() for parameter in self._parameters]
        for part, parameter in zip(torch.split(flat, sizes), self._parameters, strict=True):
            yield part.view(parameter.shape), parameter

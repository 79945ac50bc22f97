"""What a store of MXNet does, as programs of its workers. Each is given a store.

They run over tables in memory, over ringcoll's processes, and over MXNet's own store, so that what
they expect is true of it. As a script, this runs some of them in a worker of MXNet's launchers:
``programs.py KIND PROGRAM...``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy

Program = Callable[[Any], None]
SHAPE = (4, 3)
SYNC: dict[str, Program] = {}  # in an order in which all can be run with one store
ASYNC: dict[str, Program] = {}
OURS: dict[str, Program] = {}  # what MXNet's own synchronous store does wrong


def in_list(programs: dict[str, Program]) -> Callable[[Program], Program]:
    def add(program: Program) -> Program:
        programs[program.__name__] = program
        return program

    return add


def ones(factor: float = 1.0) -> Any:
    return mx.nd.ones(SHAPE) * factor


def pulled(kv: Any, key: Any) -> numpy.ndarray:
    out = mx.nd.zeros(SHAPE)
    kv.pull(key, out=out)
    return out.asnumpy()


def total(kv: Any) -> int:
    """The sum of 1, 2 and so on, one for each worker."""
    return kv.num_workers * (kv.num_workers + 1) // 2


def sparse(rows: dict[int, float]) -> Any:
    values = numpy.array([[value] * SHAPE[1] for value in rows.values()], "float32")
    return mx.nd.sparse.row_sparse_array((values, list(rows)), shape=SHAPE)


def pulled_rows(kv: Any, key: Any, ids: list[int]) -> dict[int, float]:
    out = mx.nd.sparse.zeros("row_sparse", SHAPE)
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.array(ids, dtype="int64"))
    values = out.data.asnumpy()
    assert (values == values[:, :1]).all()
    found = zip(out.indices.asnumpy().tolist(), values[:, 0].tolist(), strict=True)
    return {row: round(value, 4) for row, value in found}


def set_optimizer(kv: Any, optimizer: Any) -> None:
    kv._barrier()
    kv.set_optimizer(optimizer)
    kv._barrier()


@in_list(SYNC)
def the_first_value_is_that_of_rank_0(kv):
    kv.init(10, ones(kv.rank + 5))
    assert (pulled(kv, 10) == 5).all()


@in_list(SYNC)
def a_push_replaces_the_value_by_the_sum(kv):
    kv.init(20, ones(100))
    for factor in (1, 10):
        kv.push(20, ones((kv.rank + 1) * factor))
        assert (pulled(kv, 20) == total(kv) * factor).all()
        kv._barrier()


@in_list(SYNC)
def arrays_of_one_key_are_summed(kv):
    kv.init(30, ones(0))
    kv.push(30, [ones(1), ones(2)])
    outs = [mx.nd.zeros(SHAPE), mx.nd.zeros(SHAPE)]
    kv.pull(30, out=outs)
    assert all((out.asnumpy() == 3 * kv.num_workers).all() for out in outs)


@in_list(SYNC)
def lists_of_keys(kv):
    keys = [40, 41, 42]
    kv.init(keys, [ones(key) for key in keys])
    outs = [mx.nd.zeros(SHAPE) for _ in keys]
    kv.pull(keys, out=outs)
    assert [out.asnumpy()[0, 0] for out in outs] == keys
    kv.push(keys, [[ones(key), ones(1)] for key in keys])
    kv.pull(keys, out=[[out] for out in outs], priority=-3)
    expected = [(key + 1) * kv.num_workers for key in keys]
    assert [out.asnumpy()[0, 0] for out in outs] == expected


@in_list(SYNC)
def pushpull_writes_to_its_value_without_out(kv):
    kv.init(50, ones(0))
    value, out = ones(kv.rank + 1), mx.nd.zeros(SHAPE)
    kv.pushpull(50, value, out=out)
    assert (out.asnumpy() == total(kv)).all()
    value = ones(kv.rank + 1)  # MXNet has overwritten it, though there was another array to write
    kv.pushpull(50, value)
    assert (value.asnumpy() == total(kv)).all()


@in_list(SYNC)
def broadcast_gives_all_the_value_of_rank_0(kv):
    out = mx.nd.zeros(SHAPE)
    kv.broadcast(60, ones(kv.rank + 1), out=out)
    assert (out.asnumpy() == 1).all()


@in_list(SYNC)
def who_has_not_pushed_does_not_wait(kv):
    kv.init(70, ones(5))
    kv._barrier()
    if kv.rank == kv.num_workers - 1:
        time.sleep(0.2)
        assert (pulled(kv, 70) == 5).all()
    kv.push(70, ones())
    assert (pulled(kv, 70) == kv.num_workers).all()


@in_list(OURS)
def each_push_is_a_round(kv):
    """MXNet's servers count pushes and not workers, and take two of one worker for a round."""
    kv.init(80, ones(0))
    kv.push(80, ones(kv.rank + 1))
    kv.push(80, ones(10 * (kv.rank + 1)))
    assert (pulled(kv, 80) == 10 * total(kv)).all()


@in_list(SYNC)
def arrays_may_be_written_after_a_push(kv):
    kv.init(90, ones(0))
    value = ones(kv.rank + 1)
    kv.push(90, value)
    value[:] = 1000
    assert (pulled(kv, 90) == total(kv)).all()


@in_list(OURS)
def rows_that_are_pushed_are_replaced(kv):
    """MXNet's servers put the sums into the first rows, whatever the ids, without an optimizer."""
    kv.init(100, sparse(dict.fromkeys(range(4), 7.0)))
    assert pulled_rows(kv, 100, [3, 0, 3]) == {0: 7, 3: 7}
    kv._barrier()
    kv.push(100, sparse({0: kv.rank + 1.0, 2: 1.0}))
    assert pulled_rows(kv, 100, [0, 1, 2]) == {0: total(kv), 1: 7, 2: kv.num_workers}


@in_list(SYNC)
def one_update_of_an_optimizer_is_a_round(kv):
    """From here on the store has an optimizer."""
    set_optimizer(kv, mx.optimizer.SGD(learning_rate=0.5, rescale_grad=0.5))
    kv.init(110, ones(10))
    for round in (1, 2):
        kv.push(110, ones(kv.rank + 1))
        assert (pulled(kv, 110) == 10 - 0.25 * total(kv) * round).all()
        kv._barrier()


@in_list(SYNC)
def rows_that_are_pushed_are_updated(kv):
    kv.init(120, sparse(dict.fromkeys(range(4), 7.0)))
    kv.push(120, sparse({1: kv.rank + 1.0}))
    assert pulled_rows(kv, 120, [0, 1]) == {0: 7, 1: round(7 - 0.25 * total(kv), 4)}


@in_list(SYNC)
def an_optimizer_of_one_worker_is_that_of_all(kv):
    kv._barrier()
    if kv.rank == kv.num_workers - 1:
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    kv._barrier()
    kv.push(110, ones())
    assert (pulled(kv, 110) == 10 - 0.5 * total(kv) - kv.num_workers).all()


def follows(kv: Any, key: int, make: Callable[[], Any]) -> None:
    """The store computes what MXNet's own optimizer does in this process."""
    set_optimizer(kv, make())
    random = numpy.random.RandomState(5)
    weight = mx.nd.array(random.randn(*SHAPE))
    kv.init(key, weight)
    here, out = mx.optimizer.get_updater(make()), mx.nd.zeros(SHAPE)
    for _ in range(4):
        gradient = mx.nd.array(random.randn(*SHAPE))
        kv.pushpull(key, gradient * (kv.rank + 1), out=out)
        here(key, gradient * total(kv), weight)
        numpy.testing.assert_allclose(out.asnumpy(), weight.asnumpy(), 1e-5, 1e-6)


@in_list(SYNC)
def sgd_with_momentum(kv):
    follows(kv, 130, lambda: mx.optimizer.SGD(0.9, learning_rate=0.1, wd=0.01, rescale_grad=0.5))


@in_list(SYNC)
def nesterov(kv):
    follows(kv, 140, lambda: mx.optimizer.NAG(0.9, learning_rate=0.1, rescale_grad=0.5))
    follows(kv, 145, lambda: mx.optimizer.NAG(0.9, learning_rate=0.1, wd=0.1, rescale_grad=0.5))


@in_list(SYNC)
def adam(kv):
    follows(kv, 150, lambda: mx.optimizer.Adam(wd=0.01, rescale_grad=0.5))


@in_list(SYNC)
def adam_without_epsilon(kv):
    follows(kv, 155, lambda: mx.optimizer.Adam(wd=0.01, rescale_grad=0.5, epsilon=0.0))


@in_list(SYNC)
def adagrad(kv):
    follows(kv, 156, lambda: mx.optimizer.AdaGrad(learning_rate=0.1, wd=0.01, rescale_grad=0.5))
    follows(kv, 157, lambda: mx.optimizer.AdaGrad(learning_rate=0.1, rescale_grad=0.5, eps=0.0))


@in_list(SYNC)
def other_optimizers(kv):
    follows(kv, 158, lambda: mx.optimizer.RMSProp(wd=0.01))
    follows(kv, 159, lambda: mx.optimizer.LAMB(wd=0.01))


@in_list(SYNC)
def a_schedule_and_clipping(kv):
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.1)
    follows(kv, 160, lambda: mx.optimizer.SGD(0.9, lr_scheduler=schedule, clip_gradient=0.3))


@in_list(ASYNC)
def each_push_is_an_update(kv):
    set_optimizer(kv, mx.optimizer.SGD(learning_rate=0.5))
    kv.init(10, ones(100))
    for _ in range(3):
        kv.push(10, ones(2))
        pulled(kv, 10)
    kv._barrier()
    assert (pulled(kv, 10) == 100 - 3 * kv.num_workers).all()


@in_list(ASYNC)
def nobody_waits_for_another(kv):
    kv.init(20, ones(100))
    if kv.rank == 0:
        for _ in range(3):
            kv.push(20, ones(2))
        assert (pulled(kv, 20) == 97).all()
    kv._barrier()


def main() -> None:
    kind, *names = sys.argv[1:]
    kv = mx.kv.create(kind)
    assert kv.type == kind
    programs = SYNC | ASYNC | OURS
    for name in names:
        programs[name](kv)
        kv._barrier()
        if kv.rank == 0:
            print("passed", name, type(kv).__module__, flush=True)


if __name__ == "__main__":
    main()

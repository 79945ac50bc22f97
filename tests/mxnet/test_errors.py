"""What a store refuses, and how it says so."""

from __future__ import annotations

import mxnet as mx
import pytest
from programs import SHAPE, ones, sparse

from ringcoll.errors import InvalidArgument


def refuses(workers, what, match, kind="dist_sync", prepare=lambda kv: kv.init(1, ones())):
    def program(kv):
        prepare(kv)
        with pytest.raises(InvalidArgument, match=match) as refused:
            what(kv)
        # Programs catch the errors of MXNet's own stores.
        assert isinstance(refused.value, mx.MXNetError)

    workers(program, kind, 1)


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda kv: kv.init(1, ones()), "the key 1: it is there already"),
        (lambda kv: kv.broadcast(1, ones(), out=ones()), "the key 1: it is there already"),
        (lambda kv: kv.init("a", ones()), "all integers or all texts"),
        (lambda kv: kv.push(2, ones()), "no key 2: call init"),
        (lambda kv: kv.pull(2, out=ones()), "no key 2: call init"),
        (lambda kv: kv.push(1, mx.nd.ones((3, 3))), r"float32 \[4, 3\], .* float32 \[3, 3\]"),
        (lambda kv: kv.push(1, ones().astype("float64")), "float32 .* float64"),
        (lambda kv: kv.push(1, [ones(), mx.nd.ones((3, 3))]), "are summed, and these differ"),
        (lambda kv: kv.pull(1, out=mx.nd.ones((3, 3))), r"\[4, 3\], .* \[3, 3\]"),
        (lambda kv: kv.pull(1, out=[ones(), mx.nd.ones((3, 3))]), r"\[4, 3\], .* \[3, 3\]"),
        (lambda kv: kv.push([1, 2], [ones()]), "2 keys"),
        (lambda kv: kv.push(1, 5), "NDArray"),
        (lambda kv: kv.pull(1), "NDArray"),
        (lambda kv: kv.push(1.5, ones()), "integer or a text"),
        (lambda kv: kv.set_gradient_compression({"type": "2bit"}), "compression .* not supported"),
        (lambda kv: kv.save_optimizer_states("f"), "update_on_kvstore=False"),
        (lambda kv: kv.load_optimizer_states("f"), "update_on_kvstore=False"),
        (lambda kv: kv.is_capable("flight"), "flight"),
        (lambda kv: kv._set_updater(print), "set_optimizer"),
        (lambda kv: kv._send_command_to_servers(5, ""), "command 5"),
    ],
)
def test_refused(workers, what, match):
    refuses(workers, what, match)


def rows(kv, ids, out=None, number=1):
    out = mx.nd.sparse.zeros("row_sparse", SHAPE) if out is None else out
    kv.row_sparse_pull(1, out=[out] * number, row_ids=[mx.nd.array(ids, dtype="int64")] * 2)


@pytest.mark.parametrize(
    ("what", "match"),
    [
        (lambda kv: rows(kv, [0, 4], number=2), "rows are 0 to 3, not 0 to 4"),
        (lambda kv: rows(kv, [-1], number=2), "rows are 0 to 3"),
        (lambda kv: rows(kv, [1], out=ones(), number=2), "row_sparse"),
        (lambda kv: rows(kv, [1], number=3), "2 arrays of ids for 3 arrays"),
        (
            lambda kv: kv.set_optimizer(mx.optimizer.SGD(lazy_update=False)),
            "lazy_update=True or a dense key",
        ),
    ],
)
def test_refused_for_rows(workers, what, match):
    refuses(workers, what, match, prepare=lambda kv: kv.init(1, sparse({0: 1.0})))


def test_an_asynchronous_store_needs_an_optimizer(workers):
    refuses(workers, lambda kv: kv.push(1, ones()), "set_optimizer", "dist_async")


def test_an_error_changes_nothing(workers):
    def program(kv):
        kv.init(1, ones(0))
        with pytest.raises(InvalidArgument):
            kv.push(1, mx.nd.ones((3, 3)))
        kv.push(1, ones(2))
        out = ones(0)
        kv.pull(1, out=out)
        assert (out.asnumpy() == 2 * kv.num_workers).all()

    workers(program)

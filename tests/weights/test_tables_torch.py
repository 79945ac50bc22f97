"""Tables in programs of torch, on real servers: an embedding, and outer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from stores import Cluster, RealFactory, together

from ringcoll import rules
from ringcoll.errors import InvalidArgument
from ringcoll.tables import Uniform
from ringcoll.tables.torch import Embedding, OuterOptimizer

Make = Callable[..., Cluster]
LR = 0.1
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture
def make() -> Iterator[Make]:
    factory = RealFactory()
    made: list[Cluster] = []

    def make(ranks: int) -> Cluster:
        made.append(Cluster(factory, ["a"] * ranks))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
    factory.close()


def _table(store: Any, **options: Any) -> Any:
    settings = {"row_shape": 3, "rule": rules.SGD(lr=LR), "initial": Uniform(-1, 1, seed=3)}
    return store.table("rows", **settings | options)


def _pairs(embedding: Embedding, mode: str | None = None) -> tuple[Any, torch.Tensor]:
    """torch's own layer with the same rows, and its weight."""
    weight = torch.from_numpy(embedding.table.pull(torch.arange(10)))
    options = {"freeze": False, "sparse": False}
    if mode is None:
        own: Any = torch.nn.Embedding.from_pretrained(weight, **options)
    else:
        own = torch.nn.EmbeddingBag.from_pretrained(weight, mode=mode, **options)
    return own, own.weight


@pytest.mark.parametrize("mode", [None, "sum", "mean"])
def test_steps_are_those_of_torch(make: Make, mode: str | None) -> None:
    embedding = Embedding(_table(make(1).stores[0]), mode=mode)
    own, weight = _pairs(embedding, mode)
    optimizer = torch.optim.SGD([weight], lr=LR)
    for seed in range(3):
        ids = torch.randint(0, 10, (4, 5), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(embedding(ids), own(ids), **CLOSE)
        for layer in (embedding, own):
            layer.zero_grad()
            for again in (ids, ids[:2]):  # two passes in one step
                (layer(again) ** 2).sum().backward()
        embedding.step()
        optimizer.step()
        embedding.table.flush()
    table = torch.from_numpy(embedding.table.pull(torch.arange(10)))
    torch.testing.assert_close(table, weight.detach(), **CLOSE)


def test_bags_by_offsets(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0]), mode="sum")
    own, _ = _pairs(embedding, "sum")
    ids, offsets = torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 2])
    assert embedding(ids, offsets).equal(own(ids, offsets))


def test_all_passes_of_a_step_are_one_push(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0], shards=1))
    for ids in ([1, 2], [2, 3], [2, 2]):
        embedding(torch.tensor(ids)).sum().backward()
    embedding(torch.tensor([9]))  # without backward
    embedding.step()
    embedding.table.flush()
    info = embedding.table.info()
    assert (info["pushes"], info["rows"]) == (1, 3)


def test_a_module_without_a_weight(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0]))
    assert embedding.state_dict() == {}
    assert list(embedding.parameters()) == []
    ids = torch.tensor([[1 << 62, -5]])
    assert embedding(ids).shape == (1, 2, 3)
    assert embedding(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2, 3)
    assert embedding(torch.tensor(7)).shape == (3,)
    embedding.step()
    embedding.eval()
    assert not embedding(ids).requires_grad
    with pytest.raises(InvalidArgument, match="mode="):
        Embedding(embedding.table, mode="max")
    dense = make(1).stores[0].table("dense", 5)
    with pytest.raises(InvalidArgument, match="row_shape=64"):
        Embedding(dense)


def test_padding_is_zero_and_never_pushed(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0]), padding_idx=4)
    before = embedding.table.pull([4])
    found = embedding(torch.tensor([[1, 4], [4, 2]]))
    assert found[0, 1].tolist() == found[1, 0].tolist() == [0, 0, 0]
    assert found[0, 0].tolist() == embedding.table.pull([1])[0].tolist()
    found.sum().backward()
    embedding.step()
    embedding.table.flush()
    assert embedding.table.info()["rows"] == 2
    assert embedding.table.pull([4]).tolist() == before.tolist()
    bag = Embedding(embedding.table, padding_idx=4, mode="mean")
    rows = torch.from_numpy(embedding.table.pull([1, 4, 2]))
    assert bag(torch.tensor([[1, 4], [4, 4]])).tolist() == [rows[0].tolist(), [0, 0, 0]]


def test_gradients_can_be_scaled_changed_and_forgotten(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0], initial=0.0))
    ids = torch.tensor([1])
    embedding(ids).sum().backward()
    embedding.zero_grad()
    embedding(ids).sum().backward()
    embedding.gradients()[0].mul_(3)
    embedding.step(scale=0.5)
    assert embedding.table.pull(ids).tolist() == [[pytest.approx(-LR * 1.5)] * 3]


def test_a_prefetch_without_clocks_lacks_this_step_alone(make: Make) -> None:
    embedding = Embedding(_table(make(1).stores[0], initial=0.0, rule=rules.SGD(lr=1)))
    ids = torch.tensor([1, 2])
    for step in range(3):
        if step:
            embedding.prefetch(ids)
        embedding(ids).sum().backward()
        embedding.prefetch(ids)  # the push of this step comes after it
        embedding.step()
        seen = embedding(ids)
        assert seen.tolist() == [[-float(step)] * 3] * 2
        assert embedding(ids).tolist() == [[-float(step) - 1] * 3] * 2  # it is used once
        embedding.zero_grad()
    embedding.prefetch(ids)
    assert embedding(torch.tensor([2])).shape == (1, 3)  # other ids are pulled


@pytest.mark.parametrize("prefetch", [False, True])
def test_synchronous_workers_see_all_of_a_clock(make: Make, prefetch: bool) -> None:
    """Each of them sees after each step what one worker with all the data would."""
    steps, stores = 6, make(3).stores

    def work(rank: int) -> list[list[float]]:
        embedding = Embedding(_table(stores[rank], staleness=0, initial=0.0))
        seen = []
        for step in range(steps):
            ids = torch.tensor([step % 2, 5, 10 + rank])
            rows = embedding(ids)
            seen.append(rows[1].tolist())
            rows.sum().backward()
            if prefetch:
                embedding.prefetch(torch.tensor([(step + 1) % 2, 5, 10 + rank]))
            embedding.step(scale=1 / 3)
        return seen

    wanted = [[-LR * step] * 3 for step in range(steps)]
    for found in together([lambda r=r: work(r) for r in range(3)]):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))


# Outer steps.


def _net(seed: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 1)).to(dtype)


def _flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in net.parameters()])


def _move(net: torch.nn.Module, rank: int, step: int) -> None:
    """An inner step, other than those of other ranks."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.01 * (rank + 1) + 0.001 * step


def test_outer_steps_are_those_of_torch(make: Make) -> None:
    every, rounds, stores = 3, 4, make(2).stores
    nets = [_net(seed=1), _net(seed=2)]

    def work(rank: int) -> list[torch.Tensor]:
        outer = OuterOptimizer(stores[rank], "outer", nets[rank].parameters(), every, lr=0.5)
        seen = [_flat(nets[rank])]
        for step in range(every * rounds):
            _move(nets[rank], rank, step)
            if outer.step():
                seen.append(_flat(nets[rank]))
        assert outer.table.clock == rounds
        return seen

    one, two = together([lambda: work(0), lambda: work(1)])
    assert len(one) == rounds + 1
    assert all(a.equal(b) for a, b in zip(one, two, strict=True))
    assert one[0].equal(_flat(_net(seed=1))) or one[0].equal(_flat(_net(seed=2)))

    weights = torch.nn.Parameter(one[0].clone())
    optimizer = torch.optim.SGD([weights], lr=0.5, momentum=0.9, nesterov=True)
    for seen, after in zip(range(rounds), one[1:], strict=True):
        steps = range(seen * every, (seen + 1) * every)
        moves = [sum(0.01 * (rank + 1) + 0.001 * step for step in steps) for rank in (0, 1)]
        weights.grad = torch.full_like(weights, -sum(moves) / 2)
        optimizer.step()
        torch.testing.assert_close(after, weights.detach())


def test_shares_weigh_moves(make: Make) -> None:
    stores, nets = make(2).stores, [_net(0), _net(0)]

    def work(rank: int) -> float:
        outer = OuterOptimizer(stores[rank], "o", nets[rank].parameters(), 1, lr=1, momentum=0)
        before = _flat(nets[rank])
        _move(nets[rank], rank, 0)
        outer.step(share=[0.75, 0.25][rank])
        return float((_flat(nets[rank]) - before).mean())

    found = together([lambda: work(0), lambda: work(1)])
    assert found == [pytest.approx(0.75 * 0.01 + 0.25 * 0.02, rel=1e-4)] * 2


@pytest.mark.parametrize("staleness", [None, 2])
def test_nobody_waits_for_a_slow_worker_before_it_must(make: Make, staleness: int | None) -> None:
    stores, nets = make(2).stores, [_net(0), _net(0)]
    options = {"every": 1, "lr": 1, "momentum": 0, "staleness": staleness}

    def begin(rank: int) -> OuterOptimizer:
        return OuterOptimizer(stores[rank], "o", nets[rank].parameters(), **options)

    outers = together([lambda: begin(0), lambda: begin(1)])
    before = _flat(nets[0])
    for step in range(2):
        _move(nets[0], 0, 0)
        assert outers[0].step()
        moved = _flat(nets[0]) - before
        torch.testing.assert_close(moved, torch.full_like(moved, 0.005 * (step + 1)))
    _move(nets[1], 1, 0)
    outers[1].step()
    torch.testing.assert_close(_flat(nets[1]) - before, torch.full_like(before, 0.02))


def test_a_guest_finds_the_weights_of_the_workers(make: Make) -> None:
    cluster = make(1)
    net, late = _net(0), _net(1)
    outer = OuterOptimizer(cluster.stores[0], "o", net.parameters(), 1)
    _move(net, 0, 0)
    outer.step()
    joined = OuterOptimizer(cluster.guest(), "o", late.parameters(), 1)
    assert _flat(late).equal(_flat(net))
    assert joined.table.clock == 1


def test_parameters_of_less_precision_do_not_push_their_rounding(make: Make) -> None:
    net = _net(0, torch.bfloat16)
    outer = OuterOptimizer(make(1).stores[0], "o", net.parameters(), 1, lr=0.3, momentum=0)
    _move(net, 0, 0)
    outer.step()
    table = outer.table.pull()
    assert outer.table.dtype == "float32"
    start = outer.table.pull() * 0 + _flat(_net(0, torch.bfloat16)).float().numpy()
    assert (_flat(net).float().numpy() != start + table).any(), "a sum that bfloat16 does not have"
    outer.exchange()  # nothing has moved
    assert (outer.table.pull() == table).all()


def test_bad_arguments_of_outer_steps(make: Make) -> None:
    store = make(1).stores[0]
    with pytest.raises(InvalidArgument, match="parameters="):
        OuterOptimizer(store, "o", [], 1)
    with pytest.raises(InvalidArgument, match="every=0"):
        OuterOptimizer(store, "o", _net(0).parameters(), 0)

"""The pool of memory for pieces."""

from __future__ import annotations

import random

import pytest
from fake_agent import FakeNetwork

from ringcoll.weights.memory import Pool


@pytest.fixture
def pool() -> Pool:
    return Pool(FakeNetwork().agent())


def test_stretches_of_one_request_lie_in_one_block(pool: Pool) -> None:
    places = pool.allocate([100, 200, 300])
    assert len({block for block, _ in places}) == 1
    assert list(pool.handles(places)) == ["1"]


def test_freed_memory_is_used_again(pool: Pool) -> None:
    for _ in range(10):
        old = pool.allocate([1000] * 8)
        new = pool.allocate([1000] * 8)
        pool.free(old)
        pool.free(new)
    assert pool.total <= 2 * 8 * 1024
    assert pool.used == 0


def test_a_piece_that_stays_does_not_keep_its_whole_block(pool: Pool) -> None:
    frozen = pool.allocate([64, 6400])
    pool.free(frozen[1:])
    for _ in range(20):
        places = pool.allocate([6400])
        pool.free(places)
    assert pool.total == 6464


def test_memory_beyond_the_largest_request_is_given_back(pool: Pool) -> None:
    several = [pool.allocate([1024]) for _ in range(50)]
    for places in several:
        pool.free(places)
    assert pool.total == 1024


def test_views_do_not_overlap(pool: Pool) -> None:
    rng = random.Random(1)
    held: dict[int, tuple[list[int], int]] = {}
    for step in range(2000):
        if held and rng.random() < 0.5:
            mark, (place, size) = held.popitem() if rng.random() < 0.5 else next(iter(held.items()))
            assert (pool.view(place, size) == mark % 251).all()
            held.pop(mark, None)
            pool.free([place])
        else:
            sizes = [rng.randrange(0, 3000) for _ in range(rng.randrange(1, 5))]
            for index, place in enumerate(pool.allocate(sizes)):
                mark = step * 5 + index
                pool.view(place, sizes[index])[...] = mark % 251
                held[mark] = (place, sizes[index])


def test_a_failed_request_takes_nothing(pool: Pool) -> None:
    pool.free(pool.allocate([128]))

    def fail(shape: object, dtype: object) -> object:
        raise MemoryError("no")

    pool._agent.empty = fail
    with pytest.raises(MemoryError):
        pool.allocate([64, 64, 64])
    assert pool.used == 0


def test_freeing_twice_does_nothing(pool: Pool) -> None:
    places = pool.allocate([64])
    pool.free(places)
    pool.free(places)
    assert pool.used == 0

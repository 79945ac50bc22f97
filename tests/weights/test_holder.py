"""The memory of a holder: pieces of versions, and the deltas that it serves."""

from __future__ import annotations

import queue

import numpy
import pytest
from fake_agent import FakeNetwork

from ringcoll.weights import agents
from ringcoll.weights.holder import Holder

COUNT, SIZE = 8, 4096


@pytest.fixture
def holder() -> Holder:
    agent = FakeNetwork().agent()
    return Holder(agent, agents.name_of(agent), agents.describe(agent))


def pieces_of(version: int) -> list[str]:
    return [f"{version}/{index}" for index in range(COUNT)]


def commit(holder: Holder, version: int) -> None:
    data = numpy.zeros(SIZE, "uint8")
    data[:2] = version
    holder.copy_in([(pid, lambda: data, SIZE) for pid in pieces_of(version)])


def deltas_to(holder: Holder, version: int) -> dict:
    pairs = [[*pair, 2] for pair in zip(pieces_of(version - 1), pieces_of(version), strict=True)]
    answers: queue.SimpleQueue[dict] = queue.SimpleQueue()
    holder.serve_deltas({"pairs": pairs, "make": True}, answers.put)
    return answers.get(timeout=10)


def test_deltas_of_one_request_lie_in_one_block(holder: Holder) -> None:
    commit(holder, 1)
    commit(holder, 2)
    answer = deltas_to(holder, 2)
    assert all(answer["deltas"])
    assert len(answer["regions"]) == 1
    assert deltas_to(holder, 2) == answer


def test_deltas_leave_the_blocks_of_versions_to_versions(holder: Holder) -> None:
    """Each new block costs its page faults, so that later commits use those of the first ones."""
    for version in range(1, 10):
        commit(holder, version)
        if version > 1:
            assert all(deltas_to(holder, version)["deltas"])
        if version > 2:
            holder.free(pieces_of(version - 2))
    assert holder.pool.total == 3 * COUNT * SIZE


def test_deltas_end_with_their_pieces(holder: Holder) -> None:
    commit(holder, 1)
    commit(holder, 2)
    deltas_to(holder, 2)
    assert holder.delta_pool.used > 0
    holder.free(pieces_of(1))
    assert holder.delta_pool.used == 0
    assert holder.pool.used == COUNT * SIZE
    assert deltas_to(holder, 2)["deltas"] == [None] * COUNT


def test_a_delta_that_is_no_shorter_is_not_served(holder: Holder) -> None:
    commit(holder, 1)
    random = numpy.random.default_rng(1)
    data = random.integers(0, 256, SIZE, numpy.uint8)
    holder.copy_in([(pid, lambda: data, SIZE) for pid in pieces_of(2)])
    assert deltas_to(holder, 2) == {"deltas": [None] * COUNT, "regions": {}}

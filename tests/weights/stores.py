"""Stores for tests: ranks and guests on the agents of a factory, simulated or real.

A factory makes agents and takes them away. :class:`FakeFactory` has those of fake_agent.py, all in
this process. :class:`RealFactory` has real agents, in this process too; they can leave, but not be
killed, since that would need processes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fake_agent import FakeGuest, FakeNetwork, FakeWorld

import ringcoll
from ringcoll import _core
from ringcoll.weights.store import Store

LIMIT_S = 20.0


class Factory(Protocol):
    """Makes agents, and does things to them."""

    can_fail: bool

    def ranks(self, hosts: Sequence[str]) -> list[Any]: ...
    def guest(self, address: str, key: str, host: str) -> Any: ...
    def kill(self, agent: Any) -> None: ...
    def close(self) -> None: ...


class FakeFactory:
    """Simulated agents."""

    can_fail = True

    def __init__(self, seed: int = 0, delay: float = 0.0, silence: float = 0.3) -> None:
        self.network = FakeNetwork(seed, delay, silence)

    def ranks(self, hosts: Sequence[str]) -> list[Any]:
        world = FakeWorld([self.network.agent(host) for host in hosts])
        return [world.rank_of(rank) for rank in range(len(hosts))]

    def guest(self, address: str, key: str, host: str) -> Any:
        return FakeGuest(self.network, host, address, key)

    def kill(self, agent: Any) -> None:
        self.network.kill(agent)

    def close(self) -> None:
        self.network.close()


class RealFactory:
    """Real agents. All are on this host."""

    can_fail = False
    _names = itertools.count()

    def __init__(self) -> None:
        self._made: list[Any] = []

    def ranks(self, hosts: Sequence[str]) -> list[Any]:
        name = f"local://stores{next(self._names)}"
        size = len(hosts)

        def make(rank: int) -> Any:
            return ringcoll.Communicator(_core.Comm(rank, size, name), "world")

        made: list[Any] = together([lambda r=r: make(r) for r in range(size)])
        self._made += made
        return made

    def guest(self, address: str, key: str, host: str) -> Any:
        guest = ringcoll.connect(address, key=key)
        self._made.append(guest)
        return guest

    def kill(self, agent: Any) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for made in self._made:
            made.close()


def together(calls: Sequence[Callable[[], Any]], catch: bool = False) -> list[Any]:
    """Runs functions in threads of their own, and returns their results in order. Raises the first
    error, or returns errors as results."""
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a call hangs"
    for result in results:
        if isinstance(result, BaseException) and not catch:
            raise result
    return results


class Cluster:
    """A store with ranks on some hosts, and guests."""

    def __init__(self, factory: Factory, hosts: Sequence[str], **settings: Any) -> None:
        self.factory = factory
        self.comms = factory.ranks(hosts)
        self.settings = {"key": "secret", "timeout": LIMIT_S} | settings
        self.stores: list[Store] = together(
            [lambda c=c: Store("weights", c, **self.settings) for c in self.comms]
        )
        self.guests: list[Store] = []
        self.guest_agents: dict[int, Any] = {}

    @property
    def network(self) -> FakeNetwork:
        assert isinstance(self.factory, FakeFactory)
        return self.factory.network

    def agent(self, rank: int) -> Any:
        return self.comms[rank].agent

    def guest(self, host: str = "g", address: str | None = None, **settings: Any) -> Store:
        """A new guest."""
        address = address or self.stores[0].address
        agent = self.factory.guest(address, "secret", host)
        store = Store("weights", agent, **({"timeout": LIMIT_S} | settings))
        self.guests.append(store)
        self.guest_agents[id(store)] = agent
        return store

    def agent_of(self, store: Store) -> Any:
        if id(store) in self.guest_agents:
            return self.guest_agents[id(store)]
        return self.agent(self.stores.index(store))

    def all(self, call: Callable[[int, Store], Any], catch: bool = False) -> list[Any]:
        """Calls a function with the rank and store of each rank, in threads."""
        return together(
            [lambda r=r, s=s: call(r, s) for r, s in enumerate(self.stores)], catch=catch
        )

    def commit(self, **settings: Any) -> int:
        """All ranks commit what they have put."""
        versions = self.all(lambda rank, store: store.commit(**settings))
        assert len(set(versions)) == 1
        return int(versions[0])

    def put_all(self, tensors: dict[str, Any]) -> None:
        for store in self.stores:
            store.put_state_dict(tensors)

    def close(self) -> None:
        for store in [*self.guests, *self.stores]:
            store.close()
        self.factory.close()


def wait_until(condition: Callable[[], Any], limit: float = LIMIT_S) -> Any:
    """Polls until a condition holds, and returns its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)

"""Opens a store: ranks agree on it, guests find it."""

from __future__ import annotations

import secrets
import time
from typing import Any, NamedTuple

from ringcoll.errors import Gone, InvalidArgument, Mismatch, Timeout
from ringcoll.tables.numbers import client_number
from ringcoll.tables.parts import Parts
from ringcoll.weights import agents
from ringcoll.weights.catalog import Catalog, Json
from ringcoll.weights.control import Control
from ringcoll.weights.endpoint import Endpoint
from ringcoll.weights.group import Group, exchange
from ringcoll.weights.holder import Holder, Pulled
from ringcoll.weights.node import Node
from ringcoll.weights.replica_base import BEAT_S, FOLLOWER, LEADER
from ringcoll.weights.session import Session


class Opened(NamedTuple):
    """What a store is made of, and the writers' group of this process."""

    control: Control
    session: Session
    holder: Holder
    info: Json
    address: str | None
    identity: str  # of the store
    group: Group


class Settings(NamedTuple):
    """What the ranks that open a store must have alike."""

    name: str
    replicas: int | None
    keep: int
    serve: bool = True  # of this process alone

    def check(self) -> None:
        """Raises InvalidArgument."""
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise InvalidArgument(
                f"a store's name has letters, digits, '-', '_' and '.', not {self.name!r}"
            )
        if self.keep < 1:
            raise InvalidArgument(f"keep={self.keep}: at least one version is kept")
        if self.replicas is not None and self.replicas < 0:
            raise InvalidArgument(f"replicas={self.replicas} is negative")


def open_ranks(ranks: Any, settings: Settings, key: str | None, port: int) -> Opened:
    """Makes a store of all ranks of a communicator, or of an agent alone. Collective."""
    agent = agents.agent_of(ranks)
    rank, size = (ranks.rank, ranks.size) if agents.is_group(ranks) else (0, 1)
    address = _admit(agent, settings.name, key, port if rank == 0 else 0)
    control, session, holder, info = _new_parts(agent, settings, rank)
    control.start(None)  # so that others' first messages are not answered with a goodbye
    try:
        before = time.monotonic()
        mine: Json = {
            "id": control.me,
            "info": info,
            "address": address,
            "settings": list(settings[:3]),
        }
        mine["group"] = secrets.token_hex(8)
        everyone = exchange(ranks, mine) if size > 1 else [mine]
        _compare(everyone)
        members = {each["id"]: each["info"] for each in everyone}
        group = Group(everyone[0]["group"], rank, members)
        catalog = Catalog(members, settings.keep, settings.replicas, identity=group.id)
        leader = everyone[0]["id"]
        session.learn(members)
        session.set_leader(leader)
        with control.lock:
            control.node = Node(control.me, info, catalog, leader, time.monotonic(), before)
        if size > 1:
            ranks.barrier()  # every rank's node is there
    except BaseException:
        control.stop()
        raise
    found = everyone[0]["address"]
    return Opened(control, session, holder, info, found, group.id, group)


def open_guest(guest: Any, settings: Settings, hold: bool, timeout: float) -> Opened:
    """Finds the store at the address to which a guest has come. With ``hold`` the guest becomes a
    holder."""
    agent = agents.agent_of(guest)
    control, session, holder, info = _new_parts(agent, settings, None)
    control.start(None)
    try:
        deadline = time.monotonic() + timeout
        control.endpoint.dial_store(control.me, settings.name, guest.address, timeout)
        node = session.wait_found(timeout)
        if not node:
            why = "has no store of this name" if node == "" else "does not answer"
            error = Gone if node == "" else Timeout
            raise error(f"store {settings.name!r}: the process at {guest.address} {why}")
        session.learn({node: {"addresses": [], "host": "", "leaf": ""}})
        session.set_leader(node)
        answer = session.request({"q": "open"}, deadline - time.monotonic())
        session.learn(answer["members"])
        session.set_leader(answer["leader"])
        if hold:
            _join(control, info, answer)
            _wait_joined(control, deadline)
    except BaseException:
        control.stop()
        raise
    group = Group(secrets.token_hex(8), 0, {control.me: info})
    return Opened(control, session, holder, info, None, answer["identity"], group)


def _new_parts(
    agent: Any, settings: Settings, rank: int | None
) -> tuple[Control, Session, Holder, Json]:
    endpoint, name = Endpoint.of(agent), settings.name
    if endpoint.store_named(name):
        raise InvalidArgument(f"this process has opened the store {name!r} already: close it first")
    me, info = endpoint.new_id(), agents.describe(agent)
    info |= {"serves": settings.serve, "client": client_number(me, rank)}
    session, holder = Session(me), Holder(agent, me, info)
    control = Control(endpoint, me, name, session)
    tables = control.tables = Parts(control, agent, info["client"])

    def work(task: Json) -> None:
        if task["do"] == "free":
            holder.free(task["pids"])
        elif task["do"] == "tables":
            tables.follow()
        else:
            holder.pull(task, finish)

    def finish(pulled: Pulled) -> None:
        control.run(lambda node, now: node.pulled(now, holder.keep(pulled)))

    def serve(client: str, message: Json) -> None:
        request = message["r"]
        holder.serve_deltas(message, lambda body: control.send(client, {"a": request} | body))

    control.work, control.serve = work, serve
    return control, session, holder, info


def _compare(everyone: list[Json]) -> None:
    for other, theirs in enumerate(everyone):
        if theirs["settings"] != everyone[0]["settings"]:
            raise Mismatch(
                f"rank 0 opens the store {everyone[0]['settings']}, and rank {other} opens "
                f"{theirs['settings']} (name, replicas, keep)",
                other,
            )


def _join(control: Control, info: Json, answer: Json) -> None:
    """Begins to be a holder: as an outsider that asks to be let in."""
    catalog, now = Catalog(answer["members"]), time.monotonic()
    with control.lock:
        control.node = Node(control.me, info, catalog, answer["leader"], now, now)
    control.run(lambda node, now: node.tick(now + BEAT_S))


def _wait_joined(control: Control, deadline: float) -> None:
    """Waits until this process is a holder. Raises Timeout."""
    node = control.node
    assert node is not None
    while node.replica.role not in (FOLLOWER, LEADER) or not node.replica.committed:
        if time.monotonic() > deadline:
            raise Timeout("the store has not let this holder in before the deadline")
        time.sleep(0.01)


def _admit(agent: Any, name: str, key: str | None, port: int) -> str | None:
    if key is None:
        return None
    address: str = agent.admit(name, key, port)
    return address

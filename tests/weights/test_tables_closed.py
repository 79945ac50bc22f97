"""What is under way for tables when their store is closed."""

from __future__ import annotations

from typing import Any

import pytest
from stores import Cluster, RealFactory

from ringcoll.errors import InvalidArgument


class _Refusing:
    """A client in the library that is closed, or fails, as soon as it is to learn of routes."""

    def __init__(self, native: Any, before: Any) -> None:
        self._native, self._before = native, before

    def route(self, uid: str, servers: list[int]) -> None:
        self._before()
        raise InvalidArgument("the client of tables is closed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


@pytest.mark.parametrize("closes", [True, False])
def test_only_a_task_of_an_open_store_can_fail(
    caplog: pytest.LogCaptureFixture, closes: bool
) -> None:
    factory = RealFactory()
    cluster = Cluster(factory, ["a"])
    try:
        store = cluster.stores[0]
        record = {"uid": store.table("t", row_shape=1)._uid, "dropped": True}
        tables = store._control.tables
        assert tables is not None
        client = tables.client()
        client.native = _Refusing(client.native, client.close if closes else lambda: None)
        client.learn(record)
        client._worker.stop(5.0)
        assert ("is closed" in caplog.text) != closes
    finally:
        cluster.close()
        factory.close()

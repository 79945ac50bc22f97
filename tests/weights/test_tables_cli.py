"""``ringcoll store tables``, of a store that is served by a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from stores import wait_until

import ringcoll
from ringcoll import rules
from ringcoll.weights.store import Store

KEY = "a key"
COMMAND = [sys.executable, "-P", "-m", "ringcoll", "store"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("RINGCOLL_")} | {"RINGCOLL_KEY": KEY}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    words = [*COMMAND, "serve", "parameters"]
    with subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture(scope="module")
def store(address: str) -> Iterator[Store]:
    with ringcoll.connect(address, key=KEY) as guest, Store("parameters", guest) as store:
        rows = store.table("rows", row_shape=(2, 4), rule=rules.Adagrad(lr=0.25), max_rows=100)
        rows.push([1, 2, -3], numpy.full((3, 2, 4), numpy.nan, "float32"))
        dense = store.table("bias", shape=16, dtype="float64", staleness=1, shards=1)
        dense.join()
        dense.push(None, numpy.ones(16))
        dense.tick()
        yield store


def _run(*words: str) -> str:
    done = subprocess.run(
        [*COMMAND, "tables", *words], env=ENV, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _lines(*words: str) -> list[Any]:
    return [json.loads(line) for line in _run(*words, "--json").splitlines()]


def test_tables_are_listed(store: Store, address: str) -> None:
    head, bias, rows = _run(address).splitlines()
    assert head.split()[:4] == ["table", "kind", "type", "rule"]
    assert " ".join(bias.split()) == "bias 16 float64 sum 1 1 1 128 bytes 1 0 1 1 0 0 0"
    assert "rows of 2 x 4" in rows
    assert "adagrad 0.25" in rows
    assert "96 bytes" in rows
    assert rows.split()[-2:] == ["24", "0"], "values that are NaN, and evicted rows"
    by_name = {info["name"]: info for info in _lines(address)}
    assert by_name["bias"]["clock"] == 1
    assert list(by_name["bias"]["workers"].values()) == [0]
    assert by_name["rows"]["spec"]["max_rows"] == 100
    assert by_name["rows"]["rows"] == 3


def test_watch_counts_what_is_done_in_a_second(store: Store, address: str) -> None:
    table, stop = store.table("bias"), threading.Event()

    def pull() -> None:
        while not stop.wait(0.01):
            table.pull()

    thread = threading.Thread(target=pull)
    thread.start()
    try:
        found = _lines(address, "--watch", "--interval", "0.3", "--count", "2")
    finally:
        stop.set()
        thread.join()
    assert [info["name"] for info in found] == ["bias", "rows"] * 2
    assert all(info["per_second"]["pulls"] > 0 for info in found[::2])
    assert all(info["per_second"] == {"pushes": 0, "pulls": 0} for info in found[1::2])
    shown = _run(address, "--watch", "--interval", "0.1", "--count", "2").splitlines()
    assert len(shown) == 6
    assert "pushes/s" in shown[0]


def test_shards_that_are_lost_are_counted() -> None:
    def serve(what: str) -> subprocess.Popen[str]:
        words = [*COMMAND, "serve", what]
        return subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, text=True)

    with serve("two") as first:
        assert first.stdout
        address = first.stdout.readline().strip()
        with ringcoll.connect(address, key=KEY) as guest, Store("two", guest) as store:
            with serve(address) as second:
                wait_until(lambda: len(store.info()["holders"]) == 2)
                table = store.table("rows", row_shape=4)
                assert len(table.info()["servers"]) == 2
                second.kill()
            wait_until(lambda: table.info()["lost"] == 4)
            assert "4 (4 lost)" in _run(address)
        first.terminate()


def test_a_store_without_tables_has_none(tmp_path: Any) -> None:
    words = [*COMMAND, "serve", "empty"]
    with subprocess.Popen(words, env=ENV, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        address = server.stdout.readline().strip()
        assert len(_run(address).splitlines()) == 1
        assert _lines(address) == []
        server.terminate()

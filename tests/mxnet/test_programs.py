"""The programs: over tables in memory, and over MXNet's own store, of which they must be true."""

from __future__ import annotations

import programs
import pytest


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", [*programs.SYNC, *programs.OURS])
def test_synchronous(workers, name, size):
    earlier = {
        "an_optimizer_of_one_worker_is_that_of_all": ["one_update_of_an_optimizer_is_a_round"],
        "rows_that_are_pushed_are_updated": ["one_update_of_an_optimizer_is_a_round"],
    }

    def run(kv):
        for each in (*earlier.get(name, []), name):
            (programs.SYNC | programs.OURS)[each](kv)

    workers(run, "dist_sync", size)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", programs.ASYNC)
def test_asynchronous(workers, name, size):
    def run(kv):
        for each in dict.fromkeys(("each_push_is_an_update", name)):
            programs.ASYNC[each](kv)

    workers(run, "dist_async", size)


# It says nothing of ringcoll, and MXNet's asynchronous store may hang.
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["dist_sync", "dist_async"])
def test_mxnet_itself_does_what_the_programs_expect(launched, kind):
    names = list(programs.SYNC if kind == "dist_sync" else programs.ASYNC)
    script = str(programs.__file__)
    said = "".join(launched(["-P", script, kind, *names], RINGCOLL_MXNET="0").finish())
    assert [line.split()[1] for line in said.splitlines() if line.startswith("passed")] == names
    assert "mxnet.kvstore.kvstore" in said and "ringcoll" not in said

"""The program that makes the table of MXNet's nightly suites, with small suites in their place."""

from __future__ import annotations

import pytest
from launched import Launched
from nightly import PARTS, Outcome, Part, outcome, reason, row, run, table

PRINTED = """
Traceback (most recent call last):
  File "suite.py", line 1, in <module>
    one()
    ^^^
ValueError: an earlier one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "suite.py", line 2, in <module>
"""


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        (PRINTED + "AssertionError: (0, 1)\nworker 1 is done\n", 1, "AssertionError: (0, 1)"),
        (PRINTED + "a.b.errors.Lost: no c.d: e\n", 1, "Lost: no c.d: e"),
        (PRINTED + "AssertionError\n", 1, "AssertionError"),
        (PRINTED + f"Long: {'x' * 200}\n", 1, f"Long: {'x' * 104} …"),
        ("worker 1 is done\n", 3, "exit code 3"),
        ("worker 1 is done\n", -11, "killed by SIGSEGV"),
        (PRINTED, -6, "killed by SIGABRT"),
    ],
)
def test_the_reason_is_the_last_exception(said, code, why):
    assert reason(said, code) == why


def test_a_row_says_how_each_store_ends():
    results = {
        "own": {2: Outcome("passes"), 3: Outcome("hangs", "no end")},
        "other": {2: Outcome("fails", "a | b"), 3: Outcome("fails", "a | b")},
    }
    part = Part("s.py --x", stand_ins=True, settings="A=1")
    assert row(part, results) == (
        "| `A=1 s.py --x`, stand-ins | passes with 2, hangs with 3 | fails | "
        "own: no end; other: a \\| b |"
    )


def test_each_part_has_a_row_of_its_own():
    assert len({str(part) for part in PARTS}) == len(PARTS)


PASSES = """
import os
import mxnet as mx
kv = mx.kv.create("dist_sync")
assert kv.num_workers == 2
assert type(kv).__name__ == ("Ringcoll" if os.environ["RINGCOLL_MXNET"] == "1" else "KVStore")
kv.init(1, mx.nd.zeros(2))
"""
FAILS = PASSES + "assert kv.rank > 1\n"
STANDS_IN = (
    PASSES
    + """
assert mx.gpu(1) == mx.cpu(1)
assert mx.nd.zeros(6).reshape((6 / 2, 2)).shape == mx.nd.zeros(6).reshape(3, 2).shape == (3, 2)
"""
)


def test_suites_run_by_both_stores(tmp_path):
    texts = {"passes.py": PASSES, "fails.py": FAILS, "stands_in.py": STANDS_IN}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    parts = [Part("passes.py"), Part("fails.py"), Part("stands_in.py", stand_ins=True)]
    assert list(table(tmp_path, parts, [2], 120.0)) == [
        "| suite | MXNet's own | ringcoll | why not |",
        "| -- | -- | -- | -- |",
        "| `passes.py` | passes | passes |  |",
        "| `fails.py` | fails | fails | MXNet's own and ringcoll: AssertionError |",
        "| `stands_in.py`, stand-ins | passes | passes |  |",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(texts)


RAISES = """
try:
    assert False
finally:
    import sys, threading, traceback
    traceback.print_exc()
    sys.stderr.flush()
    threading.Event().wait()
"""


def test_a_part_that_does_not_end_hangs(tmp_path):
    (tmp_path / "waits.py").write_text("import threading\nthreading.Event().wait()\n")
    assert run(Part("waits.py"), tmp_path, 1, "1", 2.0) == Outcome("hangs", "no end within 2 s")
    (tmp_path / "raises.py").write_text(RAISES)
    assert run(Part("raises.py"), tmp_path, 1, "1", 8.0) == Outcome("hangs", "AssertionError")


def test_a_job_passes_if_all_processes_do(tmp_path):
    job = Launched(Part("--version").command(), 2, 0, tmp_path, DMLC_ROLE="worker")
    job.scheduler.kill()
    assert outcome(job, 120.0) == Outcome("fails", "killed by SIGKILL")

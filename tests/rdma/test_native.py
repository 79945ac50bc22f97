"""The C++ conformance suites on a real kernel RDMA device, instead of the one in software."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest(cpus=2, timeout=500)

BUILT = Path(__file__).resolve().parent.parent.parent / "build" / "dev"


def run(program, tests, in_guest):
    assert (BUILT / program).exists(), "build the preset dev first: ./ci/test --only ring2 ring3"
    env = os.environ | {"RINGCOLL_TEST_RDMA": "host"}
    if in_guest:
        env["TEST_RDMA_INTERFACE"] = "rdma0"  # one that may be taken down
    done = subprocess.run(
        [BUILT / program, f"--gtest_filter={tests}", "--gtest_brief=1"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\[  PASSED  \] [1-9]", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("verbs_test", "OnDevice.*"),
        ("transport_test", "*/verbs:Verbs*"),
        ("remote_test", "RdmaAgents.*:*/Ways.*/Rdma"),
        (
            "coll_test",
            "Registry/*/verbs_ring:Registry/*/verbs_recursive_doubling:VerbsFaults.*",
        ),
        pytest.param(
            "coll_test",
            "Exhaustive/*/verbs_ring:Exhaustive/*/verbs_recursive_doubling",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_conformance(device, in_guest, program, tests):
    with device.counting() as moved:
        run(program, tests, in_guest)
    assert device.packets_sent(moved) > 100


def test_a_death_in_the_setup_is_noticed_by_all(in_guest):
    run("mesh_test", "DeathInSetup.*/verbs_*", in_guest)


def test_a_kill_at_any_step_of_the_start_is_noticed_by_all(in_guest):
    run("mesh_test", "DeathAtAnyStep.*/verbs_*_rank1", in_guest)

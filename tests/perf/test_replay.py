"""What SimGrid is given to replay, and what is made of its times."""

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from harness.replay import (
    Comparison,
    Replayer,
    Tree,
    build_driver,
    messages_of,
    steps_text,
    summary,
)

# Two ranks exchange halves, then one sends to the other.
ROUNDS = [[0, 1, 0.5, 1, 0, 0.5], [1, 0, 0.25]]


def test_steps_are_written_round_by_round() -> None:
    assert steps_text(2, ROUNDS) == "2 2\n2\n0 1 0.5\n1 0 0.5\n1\n1 0 0.25\n"
    assert messages_of(ROUNDS) == 3


@pytest.mark.parametrize(("oversubscription", "uplinks"), [(1, 8), (4, 2)])
def test_both_are_told_of_the_same_tree(oversubscription: int, uplinks: int) -> None:
    tree = Tree(32, 4, oversubscription)
    host, leaf, spine = tree.levels()
    assert [level["ranks"] for level in (host, leaf, spine)] == [4, 32, 128]
    cluster = ElementTree.fromstring(tree.platform()).find("cluster")
    assert cluster is not None
    assert cluster.get("topo_parameters") == f"2;8,4;1,{uplinks};1,1"
    assert cluster.get("radical") == "0-31"
    assert cluster.get("bw") == f"{leaf['group_bytes_per_us']:g}MBps"
    assert spine["group_bytes_per_us"] == uplinks * leaf["group_bytes_per_us"]
    assert spine["latency_us"] == 2 * leaf["latency_us"]


def test_the_worst_ratio_is_the_farthest_from_one_in_either_direction() -> None:
    tree = Tree(16, 1, 1)
    cases = [
        Comparison("ring", tree, size, 1, 1, predicted, 100)
        for size, predicted in ((1, 100), (2, 120), (3, 50))
    ]
    (line,) = summary(cases)
    assert (line["family"], line["cases"], line["median"]) == ("flat ring", 3, 1.0)
    assert line["worst"] == 0.5 and line["worst case"].endswith("3 bytes")


def has_simgrid() -> bool:
    probe = ["c++", "-x", "c++", "-fsyntax-only", "-include", "simgrid/s4u.hpp", "/dev/null"]
    return (
        shutil.which("c++") is not None
        and not subprocess.run(probe, capture_output=True, check=False).returncode
    )


@pytest.mark.skipif(
    not has_simgrid(), reason="SimGrid is not there: apt-get install libsimgrid-dev"
)
def test_a_replay_takes_what_its_messages_take(tmp_path: Path) -> None:
    replayer = Replayer(build_driver(tmp_path), tmp_path, 1000, 60)
    tree = Tree(2, 1, 1)
    one = Comparison("ring", tree, 1_000_000, 1, 1, 1, 0)
    (done,) = replayer._replay([one], ROUNDS, tree)
    # Half of the vector, then a quarter, over two links of 5 us each.
    assert done.replayed_us == pytest.approx(10 + 500_000 / 1250 + 10 + 250_000 / 1250, rel=1e-3)
    replayer.most_messages = 2
    assert replayer._replay([one], ROUNDS, tree) == [] and len(replayer.left_out) == 1

"""What cannot be had: an error on all ranks, which the job survives, or else names as its end."""

import json
import subprocess
from pathlib import Path

import pytest

import ringcoll

JOBS = Path(__file__).parent / "jobs"


def results_of(folder, np):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]


@pytest.fixture
def refusing_library(tmp_path):
    """libringcoll.so with some groups that cannot be had."""
    package = Path(ringcoll.__file__).parent
    library = tmp_path / "librefusing.so"
    command = ["cc", "-shared", "-fPIC", f"-I{package / 'include'}", JOBS / "refusing_library.c"]
    command += ["-o", library, f"-L{package}", "-lringcoll", f"-Wl,-rpath,{package}"]
    subprocess.run(command, check=True)
    return str(library)


def check_survival(found, reason):
    for rank, facts in enumerate(found):
        assert len(facts["texts"]) == 3
        assert all(reason in text for text in facts["texts"]), facts
        assert facts["everybody"] == 3.0
        assert facts["before"] == (2.0 if rank in (0, 2) else None)
        assert facts["after"] == (2.0 if rank in (1, 2) else None)
        assert facts["ids"] == [1, 2]
        assert facts["again"] == (1.0 if rank == 1 else None)


@pytest.mark.parametrize(
    ("launcher", "controller"),
    [("horovodrun --gloo", "RINGCOLL"), ("horovodrun --gloo", "GLOO"), ("mpirun", "MPI")],
)
@pytest.mark.parametrize(
    ("how", "reason"), [("split", "rank 1 is named twice"), ("member", ". rank ")]
)
def test_a_group_that_cannot_be_had(
    start, tmp_path, refusing_library, launcher, controller, how, reason
):
    """Whether all ranks are told so, or the others find one gone."""
    done = start(
        "refused_sets.py",
        tmp_path,
        how,
        np=3,
        launcher=launcher,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        HOROVOD_CONTROLLER=controller,
        RINGCOLL_LIBRARY=refusing_library,
        REFUSE=how,
    ).wait()
    assert done.status == 0, done.output
    check_survival(results_of(tmp_path, 3), reason)


def test_members_that_differ(start, tmp_path):
    done = start(
        "refused_sets.py", tmp_path, "members", np=3, HOROVOD_CPU_OPERATIONS="RINGCOLL"
    ).wait()
    assert done.status == 0, done.output
    check_survival(results_of(tmp_path, 3), "different members")


@pytest.fixture
def many_sets(folder_of):
    """What the ranks of a job say that has asked for 200 process sets."""
    folder = folder_of("many_sets.py", 200, np=8, limit_s=500, HOROVOD_CPU_OPERATIONS="RINGCOLL")
    return results_of(folder, 8)


@pytest.mark.timeout(560)
def test_a_set_too_many_leaves_those_that_there_are(many_sets):
    for facts in many_sets:
        assert facts["sets"] >= 64
        assert (facts["sets"], facts["refusal"]) == (
            many_sets[0]["sets"],
            many_sets[0]["refusal"],
        )


@pytest.mark.timeout(560)
def test_two_hundred_sets(many_sets):
    for facts in many_sets:
        assert (facts["sets"], facts["refusal"]) == (200, "")


def test_a_call_that_is_refused_is_the_reason_of_the_end(start, tmp_path, refusing_library):
    """Horovod's background thread ends by it, and whoever waits or comes later is told."""
    done = start(
        "ended.py",
        tmp_path,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        RINGCOLL_LIBRARY=refusing_library,
        REFUSE="run",
    ).wait()
    assert done.status == 0, done.output
    left, refused = results_of(tmp_path, 2)
    assert all("has left" in text for text in left["texts"]), left
    assert all("op" in text and "99" in text for text in refused["texts"]), refused


def test_a_set_of_init_that_cannot_be_had(start, tmp_path, refusing_library):
    """hvd.init() itself fails then, on all ranks, and says why."""
    done = start(
        "sets_that_differ.py",
        tmp_path,
        "0,1 0,1 0,1",
        np=3,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        RINGCOLL_LIBRARY=refusing_library,
        REFUSE="split",
    ).wait()
    assert done.status == 0, done.output
    assert all("named twice" in facts["refused"] for facts in results_of(tmp_path, 3))

"""What else runs in, or starts, the processes of a job."""

import json

import pytest


def results_of(folder, np):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np)]


def test_run_from_python(start, tmp_path):
    done = start(
        "run_from_python.py", tmp_path, launcher="python", HOROVOD_CPU_OPERATIONS="RINGCOLL"
    ).wait()
    assert done.status == 0, done.output
    assert results_of(tmp_path, 1)[0]["returned"] == [[0, 2, True, 6.0], [1, 2, True, 6.0]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_data_loader_with_workers(start, tmp_path, transport):
    done = start(
        "data_loader.py",
        tmp_path,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        RINGCOLL_TRANSPORT=transport,
    ).wait()
    assert done.status == 0, done.output
    found = results_of(tmp_path, 2)
    for facts in found:
        assert facts["ringcoll"]
        assert facts["seen"] == 3 * 32
        assert facts["weights"] == found[0]["weights"]

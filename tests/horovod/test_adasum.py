"""Adasum against its formula, and against what Horovod's own operations make of the same."""

import json

import numpy as np
import pytest

# Of the largest element: results are rounded once on each level.
TOLERANCE = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def pair(a, b):
    """The formula of Maleki et al., 2020, section 3.1; a zero adds nothing and takes nothing."""
    dot = float(np.vdot(a, b))
    of_a, of_b = float(np.vdot(a, a)), float(np.vdot(b, b))
    share = 1 - dot / (2 * of_a) if of_a > 0 else 1.0
    other = 1 - dot / (2 * of_b) if of_b > 0 else 1.0
    return share * a + other * b


def adasum(vectors):
    """Of neighbours, and then of neighbours' sums."""
    vectors = [vector.astype(np.float64) for vector in vectors]
    while len(vectors) > 1:
        vectors = [pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def results_of(folder, np_ranks):
    return [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(np_ranks)]


def dtype_of(case, found):
    return next((name for name in TOLERANCE if name in case), str(found.dtype))


def check_formula(ranks):
    """How many cases there were; all ranks have the same bits."""
    cases = [key.removesuffix(" found") for key in ranks[0] if key.endswith(" found")]
    for case in cases:
        found = ranks[0][f"{case} found"]
        for other in ranks[1:]:
            assert other[f"{case} found"].tobytes() == found.tobytes(), case
        expected = adasum([rank[f"{case} given"] for rank in ranks])
        tolerance = TOLERANCE[dtype_of(case, found)]
        scale = np.max(np.abs(expected), initial=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=case)
    return len(cases)


@pytest.fixture(scope="module")
def torch_job(folder_of):
    """torch_job(operations, np) -> the folder of a job of torch, which has ended well."""

    def run(operations, np_ranks):
        return folder_of(
            "adasum.py",
            limit_s=240,
            np=np_ranks,
            launcher="mpirun" if operations == "MPI" else "horovodrun --gloo",
            HOROVOD_CPU_OPERATIONS=operations,
            HOROVOD_TIMELINE="timeline.json",
        )

    return run


SIZES = pytest.mark.parametrize("np_ranks", [pytest.param(2, marks=pytest.mark.exhaustive), 4])


@SIZES
def test_torch(torch_job, np_ranks):
    folder = torch_job("RINGCOLL", np_ranks)
    assert check_formula(results_of(folder, np_ranks)) == 4 * (5 + 4 + 4 + 2) + 2 + 2
    assert "RINGCOLL_ADASUM" in (folder / "timeline.json").read_text()


@SIZES
def test_mpi_makes_the_same(torch_job, np_ranks):
    theirs, ours = (
        results_of(torch_job(operations, np_ranks), np_ranks)[0]
        for operations in ("MPI", "RINGCOLL")
    )
    compared = [key for key in theirs if key.endswith(" found")]
    assert len(compared) == 3 * (5 + 4 + 4 + 2) + 2 + 2
    for key in compared:
        expected, found = theirs[key], ours[key]
        assert found.dtype == expected.dtype and found.shape == expected.shape, key
        atol = TOLERANCE[str(expected.dtype)] * np.max(np.abs(expected), initial=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=key)


def test_tensorflow(start, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start(
        "adasum_tensorflow.py",
        tmp_path,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        HOROVOD_DYNAMIC_PROCESS_SETS="1",
    ).wait(240)
    assert done.status == 0, done.output
    ranks = results_of(tmp_path, 2)
    assert check_formula(ranks) == 2 * (4 + 2) + 1
    for rank in ranks:
        sets, legacy = rank["messages"]
        assert "non-global process sets" in sets
        assert "DistributedGradientTape(tape, op=hvd.Adasum)" in legacy


NOT_THREE = "Running Adasum with non-power of 2 ranks is not supported yet."


def test_three_ranks_are_refused(start, tmp_path):
    done = start("adasum_refused.py", tmp_path, np=3, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait()
    assert done.status == 0, done.output
    for rank in range(3):
        facts = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert facts == {"messages": [NOT_THREE] * 2, "total": [3.0] * 3}


def test_three_ranks_are_refused_by_tensorflow(start, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start(
        "adasum_tensorflow.py",
        tmp_path,
        np=3,
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        HOROVOD_DYNAMIC_PROCESS_SETS="1",
    ).wait(240)
    assert done.status == 0, done.output
    for rank in results_of(tmp_path, 3):
        assert list(rank["messages"][1:]) == [NOT_THREE] * 2
        np.testing.assert_array_equal(rank["total"], [3, 3, 3])

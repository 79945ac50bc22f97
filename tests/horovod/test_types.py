"""Types that Horovod 0.28.1 refuses: bfloat16 everywhere, bool and small integers in reductions."""

import json

import pytest


def results_of(folder, np_ranks=2):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(np_ranks)]


def test_torch(start, tmp_path):
    done = start("types_torch.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait(240)
    assert done.status == 0, done.output
    assert [facts["cases"] > 150 for facts in results_of(tmp_path)] == [True, True]


def test_tensorflow(start, tmp_path):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start("types_tensorflow.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait(280)
    assert done.status == 0, done.output
    assert [facts["cases"] > 120 for facts in results_of(tmp_path)] == [True, True]


def test_the_mpi_controller_fuses_bfloat16(start, tmp_path):
    done = start(
        "types_torch.py",
        tmp_path,
        launcher="mpirun",
        HOROVOD_CPU_OPERATIONS="RINGCOLL",
        HOROVOD_CONTROLLER="MPI",
    ).wait(240)
    assert done.status == 0, done.output


def expected(rank):
    """The results of jobs/types_elsewhere.py in numbers; bool are 0 and 1."""
    numbers = {
        "reduce": [3.0] * 5,
        "average": [1.5] * 5,
        "gather": [1.0] * 5 + [2.0] * 5,
        "broadcast": [2.0] * 5,
        "alltoall": [1.0] * 2 + [2.0] * 2,
        "scatter": [3.0] * (3 if rank == 0 else 2),
    }
    found = {f"{name} bfloat16": row for name, row in numbers.items()}
    for dtype in ("int16", "uint8"):
        found |= {f"{name} {dtype}": [float(int(x)) for x in numbers[name]] for name in numbers}
    return found | {f"{name} bool": [float(x > 0) for x in row] for name, row in numbers.items()}


@pytest.mark.parametrize(
    ("launcher", "backend", "refused"),
    [
        (
            "horovodrun --gloo",
            "GLOO",
            {
                "bfloat16": "Type bfloat16 is not supported in Gloo mode",
                "scatter bool": "GlooReducescatter does not support bool data",
                "average bool": "Type bool not supported by ScaleBufferCPUImpl",
                "average int16": "Type int16 not supported by ScaleBufferCPUImpl",
                "adasum": "No Adasum operation enabled",
            },
        ),
        (
            "mpirun",
            "MPI",
            {
                "reduce bfloat16": "Reductions of type bfloat16 are not supported in MPI mode",
                "scatter bfloat16": "Reductions of type bfloat16 are not supported in MPI mode",
                "average bfloat16": "bfloat16",
                "average bool": "Type bool not supported by ScaleBufferCPUImpl",
                "average int16": "Type int16 not supported by ScaleBufferCPUImpl",
                "adasum": "Unsupported data type",
            },
        ),
        (
            "horovodrun --gloo",
            "RINGCOLL",
            {"average bool": "Type bool not supported", "adasum": "Unsupported data type"},
        ),
    ],
)
def test_others_are_right_or_name_the_type(start, tmp_path, launcher, backend, refused):
    done = start(
        "types_elsewhere.py", tmp_path, launcher=launcher, HOROVOD_CPU_OPERATIONS=backend
    ).wait()
    assert done.status == 0, done.output
    for rank, facts in enumerate(results_of(tmp_path)):
        for case, outcome in facts.items():
            name, dtype = case.split()
            if (backend, case) == ("RINGCOLL", "adasum bfloat16"):
                assert outcome == pytest.approx([1.5] * 5)  # parallel vectors: their mean
                continue
            reason = refused.get(case) or refused.get(name) or refused.get(dtype)
            if reason:
                assert isinstance(outcome, str) and reason in outcome, (case, outcome)
            else:
                assert outcome == expected(rank)[case], case

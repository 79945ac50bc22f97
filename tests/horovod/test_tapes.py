"""DistributedGradientTape takes whatever tf.GradientTape takes."""

import json

import pytest


@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        ("horovodrun --gloo", "RINGCOLL"),
        pytest.param("horovodrun --gloo", "GLOO", marks=pytest.mark.exhaustive),
        pytest.param("mpirun", "MPI", marks=pytest.mark.exhaustive),
    ],
)
def test_every_form_of_arguments(start, tmp_path, launcher, backend):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    done = start("tape_forms.py", tmp_path, launcher=launcher, HOROVOD_CPU_OPERATIONS=backend).wait(
        280
    )
    assert done.status == 0, done.output
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())["found"]
        assert len(found) >= 90
        assert {case: text for case, text in found.items() if text} == {}

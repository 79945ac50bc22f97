"""horovod.keras and horovod.tensorflow.keras in real `model.fit`s, under Keras 3 and Keras 2."""

import importlib.util
import json

import pytest

pytest.importorskip("tensorflow", reason="tensorflow is not installed")


def results_of(folder):
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(600)
def test_keras_3_averages(start, tmp_path):
    done = start("keras3.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL").wait(570)
    assert done.status == 0, done.output
    assert [facts["cases"] for facts in results_of(tmp_path)] == [45, 45]


@pytest.mark.skipif(not importlib.util.find_spec("tf_keras"), reason="tf-keras is not installed")
def test_keras_2_works_as_before(start, tmp_path):
    done = start(
        "keras2.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL", TF_USE_LEGACY_KERAS="1"
    ).wait(240)
    assert done.status == 0, done.output


def test_another_backend_of_keras_is_refused(start, tmp_path):
    done = start(
        "keras_on_torch.py", tmp_path, HOROVOD_CPU_OPERATIONS="RINGCOLL", KERAS_BACKEND="torch"
    ).wait()
    assert done.status == 0, done.output
    assert all("KERAS_BACKEND=tensorflow" in facts["message"] for facts in results_of(tmp_path))

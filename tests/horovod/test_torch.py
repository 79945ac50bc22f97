"""horovod.torch does what torch does: optimizers, their state, and tensors negated by a bit."""

import json

import pytest

BACKENDS = [
    ("horovodrun --gloo", "RINGCOLL"),
    ("horovodrun --gloo", "GLOO"),
    ("mpirun", "MPI"),
]


def wrong(folder, at_least):
    """The cases that the two ranks of a job found wrong, with what they found."""
    texts = {}
    for rank in range(2):
        found = json.loads((folder / f"rank{rank}.json").read_text())["found"]
        assert len(found) >= at_least
        texts |= {f"rank {rank}, {case}": text for case, text in found.items() if text}
    return texts


@pytest.mark.parametrize(("launcher", "backend"), BACKENDS)
def test_optimizers(start, tmp_path, launcher, backend):
    done = start(
        "torch_optimizers.py", tmp_path, launcher=launcher, HOROVOD_CPU_OPERATIONS=backend
    ).wait()
    assert done.status == 0, done.output
    assert wrong(tmp_path, at_least=200) == {}


@pytest.mark.parametrize(("launcher", "backend"), BACKENDS)
def test_tensors_whose_memory_is_not_their_value(start, tmp_path, launcher, backend):
    done = start(
        "lazy_tensors.py", tmp_path, launcher=launcher, HOROVOD_CPU_OPERATIONS=backend
    ).wait()
    assert done.status == 0, done.output
    assert wrong(tmp_path, at_least=70) == {}

"""The examples under horovodrun: they learn, and GLOO and RINGCOLL agree to the last bit."""

import pytest
from support import jobs

HALF_OF_IT = ("--epochs", "4")  # has learnt
pytestmark = pytest.mark.timeout(900)  # two runs in a test, each with a limit of its own


@pytest.mark.parametrize("script", ["train_digits_torch.py", "train_digits_tensorflow.py"])
def test_two_ranks_learn_the_same_under_ringcoll_and_gloo(script):
    ringcoll = jobs.train(script, "RINGCOLL", *HALF_OF_IT)
    gloo = jobs.train(script, "GLOO", *HALF_OF_IT)
    assert ringcoll["ranks"] == gloo["ranks"] == 2
    assert ringcoll["accuracy"] >= 0.95
    # Two addends have one sum in any order: the same bits are due from both.
    assert ringcoll["weights"] == gloo["weights"]
    assert ringcoll["accuracy"] == gloo["accuracy"]


@pytest.mark.exhaustive
def test_three_ranks_learn_under_ringcoll():
    assert jobs.train("train_digits_torch.py", "RINGCOLL", ranks=3)["accuracy"] >= 0.95

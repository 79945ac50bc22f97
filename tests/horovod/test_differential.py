"""The same script under GLOO and under RINGCOLL must give the same results."""

import numpy as np
import pytest

# An average multiplies by 1/size, which is exact for sizes that are powers of two only; and each
# backend may combine in an order of its own.
TOLERANCE = {np.dtype("float16"): 2e-3, np.dtype("float32"): 1e-6, np.dtype("float64"): 1e-12}


@pytest.fixture
def both(start, tmp_path):
    """{backend: [results of each rank]}"""
    found = {}
    for backend in ("GLOO", "RINGCOLL"):
        folder = tmp_path / backend
        folder.mkdir()
        done = start("every_operation.py", folder, np=3, HOROVOD_CPU_OPERATIONS=backend).wait(280)
        assert done.status == 0, f"{backend}: {done.output[-4000:]}"
        found[backend] = [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(3)]
    return found


def is_exact(case, dtype):
    return "average" not in case or dtype.kind not in "f" or "world" not in case


def test_gloo_and_ringcoll_agree(both):
    compared = 0
    for rank, (gloo, ringcoll) in enumerate(zip(both["GLOO"], both["RINGCOLL"], strict=True)):
        assert gloo.keys() == ringcoll.keys()
        for case, expected in gloo.items():
            actual = ringcoll[case]
            where = f"rank {rank}: {case}"
            assert actual.dtype == expected.dtype and actual.shape == expected.shape, where
            if is_exact(case, expected.dtype):
                assert actual.tobytes() == expected.tobytes(), where
            else:
                np.testing.assert_allclose(
                    actual, expected, rtol=TOLERANCE[expected.dtype], err_msg=where
                )
            compared += 1
    assert compared > 3000


def test_all_ranks_get_the_same_bits(both):
    first = both["RINGCOLL"][0]
    for other in both["RINGCOLL"][1:]:
        for case, expected in first.items():
            result = case.startswith("allreduce") and not case.endswith((" input", " unchanged"))
            if result and case in other:
                assert other[case].tobytes() == expected.tobytes(), case

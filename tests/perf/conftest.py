"""Makes perf/harness importable as `harness`, without perf/ on the path: its horovod.py would hide
the package of that name from every other test of the process."""

import importlib.util
import sys
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "perf" / "harness"

if "harness" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "harness", HARNESS / "__init__.py", submodule_search_locations=[str(HARNESS)]
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["harness"] = module
    spec.loader.exec_module(module)

import pytest  # noqa: E402
from harness import report  # noqa: E402
from harness.figures import MIB, Target  # noqa: E402


@pytest.fixture
def results() -> report.Results:
    return report.Results(
        title="Allreduce",
        ours="ringcoll",
        method="How.",
        targets=[Target("gloo", 2, 5.0)],
        machine={"cpu": "a CPU"},
        peers={"ringcoll": "1.0", "gloo": "2.0"},
        rounds={
            (2, "ringcoll", 4): [1e-6, 1e-6],
            (2, "gloo", 4): [6e-6, 8e-6],
            (2, "ringcoll", MIB): [1e-3, None],
            (2, "gloo", MIB): [2e-3, 3e-3],
        },
        memory=[report.Memory(2, 4, 3 * MIB), report.Memory(2, MIB, 90 * MIB)],
        memory_bound=80 * MIB,
    )

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

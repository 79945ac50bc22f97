"""What `import ringcoll` brings in: little, for every rank of a job waits for it (ci/wheel measures
the time)."""

from __future__ import annotations

import json
import subprocess
import sys

# Each takes from some milliseconds to seconds, and is loaded by who needs it.
HEAVY = ("numpy", "rich", "torch", "tensorflow", "horovod", "shtab", "matplotlib")
HEAVY += ("argparse", "asyncio", "concurrent", "subprocess", "multiprocessing", "socket", "email")


def _loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_import_loads_nothing_heavy():
    before = _loaded_by("pass")  # such as what .pth files load
    assert not (_loaded_by("import ringcoll") - before).intersection(HEAVY)

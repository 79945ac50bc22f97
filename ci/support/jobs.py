"""Runs an example under horovodrun with a chosen backend, and reads its result."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support import setup
from support.stages import ROOT, VENV, StageFailed, must, run

_LIMIT_S = 300
_RESULT = re.compile(r'\{"\w+": .*\}')


def train(script: str, operations: str, *arguments: str, ranks: int = 2) -> dict[str, Any]:
    """Runs examples/`script` as :func:`results` does. Returns its only line of JSON."""
    found = results(script, operations, *arguments, ranks=ranks)
    if len(found) != 1:
        raise StageFailed(f"{script} printed {len(found)} results, not one")
    return found[0]


def results(script: str, operations: str, *arguments: str, ranks: int = 2) -> list[dict[str, Any]]:
    """Runs examples/`script` with HOROVOD_CPU_OPERATIONS=`operations`. Returns its lines of JSON.

    The command is the same for every backend. It names the Gloo launcher: if Horovod also has MPI,
    horovodrun would start jobs with mpirun, and Horovod 0.28.1 cannot run GLOO operations then.
    """
    launch = [str(VENV / "bin" / "horovodrun"), "--gloo", "-np", str(ranks)]
    env = setup.tools_env() | {"HOROVOD_CPU_OPERATIONS": operations}
    log = f"{Path(script).stem}-{operations.lower()}"
    command = [*launch, str(setup.PYTHON), str(ROOT / "examples" / script), *arguments]
    outcome = must(run(command, log, env=env, limit_s=_LIMIT_S))
    found = _RESULT.findall(outcome.log.read_text(errors="replace"))
    return [json.loads(line) for line in found]

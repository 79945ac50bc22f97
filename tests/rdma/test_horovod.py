"""An unchanged Horovod job whose gradients go by RDMA."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Four minutes on a quiet machine; several times that on a busy one.
pytestmark = [pytest.mark.guest(cpus=2, memory=8192, timeout=1400), pytest.mark.timeout(1340)]

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "train_digits_torch.py"


def test_digits_are_trained_over_verbs(device, tmp_path):
    """One pass over the digits, in few steps: the guest's processors are emulated."""
    tools = Path(sys.executable).parent
    env = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOROVOD_CPU_OPERATIONS": "RINGCOLL",
        "RINGCOLL_TRANSPORT": "verbs",
    }
    command = ["horovodrun", "--gloo", "-np", "2", sys.executable, str(EXAMPLE)]
    with device.counting() as moved:
        done = subprocess.run(
            [*command, "--epochs", "1", "--batch", "240"],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1300,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert "2 ranks on 1 host; verbs between ranks" in done.stdout
    result = json.loads(re.findall(r'\{"framework".*\}', done.stdout)[0])
    assert result["ranks"] == 2 and result["steps"] > 0
    gradients = result["steps"] * result["gradient_bytes"]
    assert device.packets_sent(moved) >= gradients / 4096

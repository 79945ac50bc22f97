"""An unchanged Horovod job whose gradients go by RDMA."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Minutes, most of them spent on importing torch; several times that on a busy machine.
pytestmark = [pytest.mark.guest(cpus=2, memory=8192, timeout=1400), pytest.mark.timeout(1340)]

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "train_digits_torch.py"
# Else horovodrun asks TensorFlow what Horovod was built with: minutes of an emulated processor.
WITHOUT_TENSORFLOW = ROOT / "tests" / "horovod" / "jobs" / "without_tensorflow"


def test_digits_are_trained_over_verbs(device, tmp_path):
    """Four steps with few images, and few cycles beside them: the guest's processors are
    emulated."""
    tools = Path(sys.executable).parent
    env = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(WITHOUT_TENSORFLOW),
        "HOROVOD_CPU_OPERATIONS": "RINGCOLL",
        "HOROVOD_CYCLE_TIME": "20",
        "RINGCOLL_TRANSPORT": "verbs",
    }
    command = ["horovodrun", "--gloo", "-np", "2", sys.executable, str(EXAMPLE)]
    with device.counting() as moved:
        done = subprocess.run(
            [*command, "--epochs", "1", "--images", "160", "--batch", "20"],
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
    assert result["ranks"] == 2 and result["steps"] == 4
    gradients = result["steps"] * result["gradient_bytes"]
    assert device.packets_sent(moved) >= gradients / 4096

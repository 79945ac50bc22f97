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
STAND_INS = Path(__file__).parent / "stand_ins"
RANKS = 2


def start_rank(rank: int, folder: Path) -> subprocess.Popen[bytes]:
    """Without a launcher, which would import torch once more before the ranks do."""
    place = {"RANK": rank, "SIZE": RANKS, "LOCAL_RANK": rank, "LOCAL_SIZE": RANKS}
    env = os.environ | {
        **{f"HOROVOD_{name}": str(value) for name, value in place.items()},
        "PYTHONPATH": str(STAND_INS),
        "HOROVOD_CPU_OPERATIONS": "RINGCOLL",
        "HOROVOD_CYCLE_TIME": "20",
        "RINGCOLL_STORE": f"file://{folder}",
        "RINGCOLL_TRANSPORT": "verbs",
    }
    command = [sys.executable, str(EXAMPLE), "--epochs", "1", "--images", "160", "--batch", "20"]
    with (folder / f"output.{rank}").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def test_digits_are_trained_over_verbs(device, tmp_path):
    """Four steps with few images, and few cycles beside them: the guest's processors are
    emulated."""
    with device.counting() as moved:
        ranks = [start_rank(rank, tmp_path) for rank in range(RANKS)]
        try:
            statuses = [rank.wait(1300) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    outputs = [(tmp_path / f"output.{rank}").read_text() for rank in range(RANKS)]
    assert statuses == [0] * RANKS, outputs
    assert "2 ranks on 1 host; verbs between ranks" in outputs[0]
    result = json.loads(re.findall(r'\{"framework".*\}', outputs[0])[0])
    assert result["ranks"] == RANKS and result["steps"] == 4
    gradients = result["steps"] * result["gradient_bytes"]
    assert device.packets_sent(moved) >= gradients / 4096

"""Ray's direct transport of tensors over ringcoll, with actors of a real Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
JOBS = Path(__file__).parent / "jobs"
MEGABYTE = float(1 << 19)  # the sum of that many bytes of 2.0, as float32
# Ray's limit of a transfer. Longer than all transfers whose actors run.
LIMIT_S = 10


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return {}


@pytest.fixture
def on_ray(tmp_path, run_job, found):
    """What the job has found; it runs once."""
    if not found:
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # its sockets' names must be short
        output = tmp_path / "found.json"
        limit = {"RAY_rdt_fetch_fail_timeout_milliseconds": str(LIMIT_S * 1000)}
        try:
            run_job([sys.executable, JOBS / "tensors_on_ray.py", folder, output], **limit)
        finally:
            shutil.rmtree(folder)
        found.update(json.loads(output.read_text()))
    return found


def test_tensors_arrive_as_they_were(on_ray):
    values = on_ray["values"]
    assert values["passed"] == values["expected"]  # to another actor
    assert values["got"] == values["expected"]  # to the driver
    assert values["from driver"] == values["expected put"]
    assert values["total"] == 6 * MEGABYTE
    assert values["own"] == MEGABYTE
    assert values["of a put"] == 1000
    assert on_ray["target"] == MEGABYTE


def test_freed_objects_free_their_regions(on_ray):
    assert on_ray["garbage"] == [0, 3, 0, 0]


@pytest.mark.parametrize("where", ["killed before", "killed elsewhere"])
def test_a_dead_actor_is_an_error_of_ray_in_seconds(on_ray, where):
    name, text, seconds = on_ray[where]
    assert name == "RayTaskError(RayDirectTransportError)", text
    assert seconds < 5
    assert "may have ended" in text


@pytest.mark.parametrize("where", ["killed meanwhile", "killed meanwhile elsewhere"])
def test_an_actor_killed_in_the_middle_is_never_a_hang(on_ray, where):
    name, text, seconds = on_ray[where]
    assert name in ("", "RayTaskError(RayDirectTransportError)"), text
    assert name or text == 256 * MEGABYTE
    assert seconds < 8


def test_a_stopped_actor_ends_nothing_but_its_transfer(on_ray):
    name, text, seconds = on_ray["stopped elsewhere"]
    assert name, text  # Ray's limit: of the transfer, or of the task that waits for it
    assert seconds < LIMIT_S + 10
    assert on_ray["after"] == MEGABYTE


def test_without_ray_it_says_what_is_missing():
    program = "import sys; sys.modules['ray'] = None; import ringcoll.ray_transport"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ringcoll.ray_transport needs Ray 2.60 or later"), last

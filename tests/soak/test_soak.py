"""Jobs of ci/soak with fixed seeds: everything at random, compared with NumPy."""

from __future__ import annotations

import pytest
from support.setup import tools_env
from support.soak.job import Job
from support.soak.script import Plan
from support.stages import must, run

# About two minutes in all. A failure says which command runs its job again.
JOBS = [
    Plan(seed, size, transport, profile, steps=60, laps=laps)
    for seed, (size, transport, profile, laps) in enumerate(
        [
            (2, "shm", "calm", 4),
            (3, "shm", "groups", 1),
            (3, "shm", "groups", 4),
            (4, "shm", "groups", 1),
            (4, "shm", "deaths", 1),
            (3, "shm", "stops", 1),
            (5, "shm", "all", 1),
            (2, "tcp", "calm", 4),
            (3, "tcp", "groups", 4),
            (4, "tcp", "deaths", 1),
            (3, "tcp", "stops", 1),
            (4, "tcp", "all", 1),
            (4, "mixed", "groups", 4),
            (5, "mixed", "all", 1),
        ],
        start=1,
    )
]


@pytest.fixture(scope="module")
def software_device():
    """The library that has it, built if it is not there."""
    must(run(["cmake", "--preset", "dev"], "soak-configure", env=tools_env()))
    build = ["cmake", "--build", "--preset", "dev", "--target", "soak_fake"]
    must(run(build, "soak-build", env=tools_env()))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "profile"), [(2, "calm"), (3, "groups")])
def test_a_job_over_the_software_rdma_device(software_device, size, profile):
    result = Job(Plan(21, size, "fake", profile, steps=40, laps=4)).run()
    assert not result.failure, f"{result.failure}\n{result.details}\nagain: {result.command()}"


@pytest.mark.parametrize(
    "plan", JOBS, ids=lambda plan: f"{plan.transport}-{plan.profile}-{plan.size}-{plan.seed}"
)
def test_a_job_of_everything_at_random(plan: Plan):
    result = Job(plan).run()
    assert not result.failure, f"{result.failure}\n{result.details}\nagain: {result.command()}"

"""The model of the store agrees with real stores, on simulated and on real agents."""

from __future__ import annotations

import os

import pytest
from model import Driver
from stores import Cluster, FakeFactory, RealFactory

OPERATIONS = int(os.environ.get("RINGCOLL_TEST_OPERATIONS", "10000"))


@pytest.mark.parametrize("seed", range(4))
def test_model_agrees_on_simulated_agents(seed: int) -> None:
    factory = FakeFactory(seed, delay=0.002 if seed % 2 else 0.0)
    cluster = Cluster(factory, ["a", "b", "a"], keep=2, replicas=1)
    driver = Driver(cluster, seed, keep=2, faults=True)
    try:
        driver.run(OPERATIONS // (4 if seed % 2 == 0 else 20))
    finally:
        cluster.close()
    print(driver.counts, "versions:", driver.model.newest)


@pytest.mark.parametrize("seed", range(2))
def test_model_agrees_on_real_agents(seed: int) -> None:
    cluster = Cluster(RealFactory(), ["a", "a"], keep=2, replicas=1)
    driver = Driver(cluster, seed, keep=2, faults=False)
    try:
        driver.run(OPERATIONS // 10)
    finally:
        cluster.close()
    print(driver.counts, "versions:", driver.model.newest)

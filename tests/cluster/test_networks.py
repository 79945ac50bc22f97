"""Which of several networks ranks on several hosts use (docs/cluster.md, "Several networks")."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.hosts import Network

import ringcoll

# Of the networks that join the hosts, the slow one comes first, and no name tells them apart.
SLOW = Network(rate="20mbit", names=("eth0", "ens1", "enp3s0"))
FAST = Network(names=("eth1", "ens2", "enp2s0"))
NOT_ROUTED = Network(joined=False, names=("eth2", "ens0", "enp1s0"))


def network_in_use(world):
    x = np.full(100_000, world.rank + 1, "f4")
    np.testing.assert_array_equal(world.allreduce(x), np.full_like(x, 6))
    with world.split(range(world.size)) as part:
        np.testing.assert_array_equal(part.allreduce(x), np.full_like(x, 6))
        return world.stats()["network"], part.stats()["network"].split(" ")[0]


@pytest.fixture
def hosts(emulate, places):
    return places(emulate(3, [NOT_ROUTED, SLOW, FAST]), 1, 1, 1)


@pytest.mark.parametrize(
    ("env", "network"),
    [
        pytest.param({}, "10.0.2.0/24", id="the fastest that joins all hosts"),
        pytest.param({"RINGCOLL_INTERFACE": "eth0,ens1,enp3"}, "10.0.1.0/24", id="by name"),
        pytest.param({"RINGCOLL_INTERFACE": "10.0.0.0/23"}, "10.0.1.0/24", id="by network"),
        pytest.param(
            {"RINGCOLL_INTERFACE": "^=eth1,ens2,enp2s0"}, "10.0.1.0/24", id="by exclusion"
        ),
        # Interfaces that hosts do not have are no reason to fail: it was not said to ringcoll.
        pytest.param(
            {"HOROVOD_GLOO_IFACE": "eth0", "NCCL_SOCKET_IFNAME": "ens1,eth0,enp3s0"},
            "10.0.1.0/24",
            id="as the launcher found",
        ),
    ],
)
def test_the_network_is(run_ranks, hosts, env, network):
    for used, used_by_part in run_ranks(3, network_in_use, hosts=hosts, env=env):
        assert used.startswith(f"{network} ("), used
        assert " and " not in used
        assert used_by_part == network


def test_networks_that_are_equally_fast_are_both_used(run_ranks, emulate, places):
    hosts = places(emulate(3, [Network(rate="100mbit"), Network(rate="100mbit")]), 1, 1, 1)
    for used, _ in run_ranks(3, network_in_use, hosts=hosts):
        assert {text.split(" ")[0] for text in used.split(" and ")} == {
            "10.0.0.0/24",
            "10.0.1.0/24",
        }


def bytes_sent():
    """Of each interface of this host."""
    rows = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return {name.strip(): int(numbers.split()[8]) for name, numbers in rows}


def shares_of_networks(world):
    x = np.ones(2 << 20, "f4")
    for _ in range(26):  # until it is settled how many streams pay
        world.allreduce(x)
    before = bytes_sent()
    for _ in range(3):
        world.allreduce(x)
    sent = [count - before[name] for name, count in bytes_sent().items() if name != "lo"]
    return [count / sum(sent) for count in sent]


# A second network is a second wire: calls take half the time, however much the kernel keeps, and
# also where ranks share the work in pieces that go over one stream.
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_long_goes_over_both(run_ranks, emulate, places, ranks):
    hosts = places(emulate(2, [Network(rate="400mbit"), Network(rate="400mbit")]), ranks, ranks)
    for shares in run_ranks(2 * ranks, shares_of_networks, hosts=hosts):
        assert len(shares) == 2 and min(shares) > 0.3, shares


def error_of_init(rank, size, store):
    try:
        ringcoll.init(rank, size, store)
    except ringcoll.Error as error:
        return type(error).__name__, str(error)


def test_an_interface_that_one_host_does_not_have_is_named_by_all(run_ranks, hosts):
    env = {"RINGCOLL_INTERFACE": "=eth0,ens1"}
    errors = run_ranks(3, error_of_init, hosts=hosts, env=env, connect=False)
    assert len(set(errors)) == 1
    for part in (
        "rank 2 cannot start: RINGCOLL_INTERFACE==eth0,ens1",
        "enp2s0 (10.0.2.3)",
        "[on h3]",
    ):
        assert part in errors[0][1]


def test_hosts_without_a_network_in_common_are_named(run_ranks, emulate, places):
    env = {"RINGCOLL_TIMEOUT_S": "5"}
    other = Network(joined=False, names=("eth3", "ens3"))
    hosts = places(emulate(2, [NOT_ROUTED, other]), 1, 1)
    errors = run_ranks(2, error_of_init, hosts=hosts, env=env, connect=False)
    for _, text in errors:
        for part in ("10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2", "network"):
            assert part in text

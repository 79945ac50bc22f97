"""What ``ringcoll doctor`` makes of what the ranks of a job tell, without hosts or networks."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from ringcoll.checkup.paths import find_unreached
from ringcoll.checkup.settings import compare_settings, find_containers
from ringcoll.checkup.speeds import find_slow_hosts, find_slow_pairs, suspects
from ringcoll.checkup.verdict import judge
from ringcoll.cluster.hosts import Host, find_hosts, rounds
from ringcoll.cluster.pair import View

FAST, SLOW = 1e9, 1e8
ETHERNET = {"name": "eth0", "address": "10.0.0.1", "mtu": 1500, "speed": 1000, "loopback": False}


AGREEMENT = {
    "RINGCOLL_SLOTS": "agreed",
    "RINGCOLL_INTERFACE": "own",
    "RINGCOLL_TOPOLOGY": "rank 0's",
    "RINGCOLL_COSTS": "rank 0's",
}


def report(rank, name, **more):
    interface = ETHERNET | {"address": f"10.0.0.{rank + 1}"}
    told = {"hostname": name, "host": name, "machine": name, "interfaces": [interface]}
    told |= {"versions": {"ringcoll": "1"}, "knobs": {"RINGCOLL_SLOTS": "4"}, "failed": []}
    return told | more


def cluster(count):
    reports = {rank: report(rank, f"h{rank}") for rank in range(count)}
    return reports, find_hosts(reports)


def views(count, rate=lambda sender, receiver: FAST, trip=lambda a, b: 100.0):
    return {
        (a, b): View(True, "a", "", trip(a, b), rate(b, a), 1500)
        for a, b in permutations(range(count), 2)
    }


def find_slow(hosts, found):
    return [*find_slow_hosts(hosts, found), *find_slow_pairs(hosts, found)]


@pytest.mark.parametrize("count", range(1, 12))
def test_rounds_hold_every_pair_once_and_no_host_twice(count):
    seen = []
    for pairs in rounds(count):
        players = [host for pair in pairs for host in pair]
        assert len(players) == len(set(players))
        seen += [tuple(sorted(pair)) for pair in pairs]
    assert sorted(seen) == sorted(combinations(range(count), 2))


def test_hosts_of_one_name_are_told_apart():
    reports = {rank: report(rank, "pod", host=f"pod {rank // 2}") for rank in range(4)}
    first, second = find_hosts(reports)
    assert (first.name, first.ranks) == ("pod (10.0.0.1, rank 0)", [0, 1])
    assert (second.name, second.ranks) == ("pod (10.0.0.3, rank 2)", [2, 3])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_nothing_is_said_of_hosts_that_are_alike(count):
    reports, hosts = cluster(count)
    assert judge(reports, count, hosts, views(count), AGREEMENT) == []


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("slow", ["sends", "receives"])
def test_a_slow_host_is_named_and_none_of_its_pairs(count, slow):
    _, hosts = cluster(count)
    found = views(
        count,
        lambda sender, receiver: SLOW if (sender if slow == "sends" else receiver) == 2 else FAST,
    )
    [finding] = find_slow(hosts, found)
    assert finding.part == "host h2" and finding.detail.startswith(f"{slow} 800 Mb/s at most")
    side = 1 if slow == "sends" else 0  # who looks, receives
    assert suspects(found) == sorted(pair for pair in found if pair[side] == 2)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_pair_is_named_and_neither_of_its_hosts(count):
    _, hosts = cluster(count)
    found = views(count, lambda sender, receiver: SLOW if (sender, receiver) == (0, 2) else FAST)
    [finding] = find_slow(hosts, found)
    assert finding.part == "hosts h0 and h2" and "rate 800 Mb/s from the first" in finding.detail
    assert suspects(found) == [(2, 0)]


def test_a_host_that_answers_late():
    _, hosts = cluster(4)
    [finding] = find_slow(hosts, views(4, trip=lambda a, b: 900.0 if 3 in (a, b) else 100.0))
    assert finding.part == "host h3" and "answers after 900 µs at best" in finding.detail


def test_racks_are_no_fault():
    _, hosts = cluster(6)
    found = views(6, lambda a, b: FAST if a // 3 == b // 3 else SLOW)
    [finding] = find_slow(hosts, found)
    assert finding.status == "note" and "h0, h1, h2; h3, h4, h5" in finding.detail


def test_pairs_that_there_was_no_time_for_are_no_slow_links():
    _, hosts = cluster(4)
    assert (
        find_slow(hosts, {pair: view for pair, view in views(4).items() if sum(pair) in (1, 5)})
        == []
    )


def test_a_host_that_nobody_reaches():
    _, hosts = cluster(4)
    found = views(4)
    for a in range(3):
        found[a, 3] = View(error="refused")
    [finding] = find_unreached(hosts, found)
    assert (finding.part, finding.status) == ("host h3", "failed")
    assert finding.detail.startswith("is reached by no other host at 10.0.0.4 (refused)")


def test_a_host_that_is_reached_at_its_second_address_is_no_fault():
    _, hosts = cluster(4)
    found = views(4)
    for a in range(3):
        found[a, 3] = View(True, "10.1.0.3", "refused", 100.0, FAST, 1500)
    [finding] = find_unreached(hosts, found)
    assert (finding.part, finding.status) == ("host h3", "note")
    assert "10.1.0.3 does answer" in finding.detail


def test_one_direction_of_one_pair():
    _, hosts = cluster(4)
    found = views(4) | {(2, 1): View(error="no answer")}
    [finding] = find_unreached(hosts, found)
    assert finding.part == "hosts h2 and h1" and "first does not reach the second" in finding.detail


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        (["4", "4", "8"], "host h2: 8, elsewhere 4"),
        (["4", "8", "16"], "host h0: 4; host h1: 8; host h2: 16"),
        (["4", "8"], "host h0: 4; host h1: 8"),
        (["4", "4", ""], "host h2: (empty), elsewhere 4"),
    ],
)
def test_a_knob_that_differs(values, detail):
    reports = {
        rank: report(rank, f"h{rank}", knobs={"RINGCOLL_SLOTS": value})
        for rank, value in enumerate(values)
    }
    [finding] = compare_settings(reports, find_hosts(reports), AGREEMENT)
    assert finding.status == "failed" and finding.detail.startswith(detail + ":"), finding


def test_one_rank_of_a_host_is_not_called_the_host():
    reports = {rank: report(rank, f"h{rank // 2}") for rank in range(6)}
    reports[2]["knobs"] = {"RINGCOLL_SLOTS": "8"}
    [finding] = compare_settings(reports, find_hosts(reports), AGREEMENT)
    assert finding.detail.startswith("rank 2 (h1): 8, elsewhere 4:")


def test_an_interface_of_another_mtu_or_speed():
    reports = {rank: report(rank, f"h{rank // 2}") for rank in range(6)}
    for rank in (2, 3):
        reports[rank]["interfaces"][0] |= {"mtu": 9000, "speed": 100}
    mtu, speed = compare_settings(reports, find_hosts(reports), AGREEMENT)
    assert mtu.detail.startswith("host h1: 9000 bytes, elsewhere 1500 bytes:")
    assert speed.detail.startswith("host h1: 100 Mb/s, elsewhere 1000 Mb/s:")


@pytest.mark.parametrize(
    ("name", "status"), [("RINGCOLL_INTERFACE", "note"), ("RINGCOLL_OF_A_LATER_RELEASE", "failed")]
)
def test_a_knob_may_differ_where_the_table_says_so(name, status):
    reports, hosts = cluster(3)
    reports[1]["knobs"] = reports[1]["knobs"] | {name: "ib1"}
    found = compare_settings(reports, hosts, AGREEMENT)
    assert [finding.status for finding in found] == [status]


@pytest.mark.parametrize("name", ["RINGCOLL_TOPOLOGY", "RINGCOLL_COSTS"])
@pytest.mark.parametrize(
    ("values", "differing"),
    [
        (["a", "", "a"], []),  # rank 0's, and others may have none
        (["a", "a", "b"], ["failed"]),
        (["", "a", ""], ["failed"]),
    ],
)
def test_files_that_rank_0_reads(name, values, differing):
    reports = {r: report(r, f"h{r}", knobs={name: value}) for r, value in enumerate(values)}
    found = compare_settings(reports, find_hosts(reports), AGREEMENT)
    assert [finding.status for finding in found] == differing


def test_containers_of_one_machine():
    reports = {rank: report(rank, f"pod{rank}", machine="m") for rank in range(2)}
    [finding] = find_containers(reports, find_hosts(reports))
    assert "pod0, pod1 are on one machine" in finding.detail


def test_a_second_look_takes_the_better():
    first, second = View(True, "a", "", 900.0, SLOW, None), View(True, "a", "", 100.0, FAST, 1500)
    assert first.better(second) == second.better(first) == second
    assert View(error="x").better(first) == first == first.better(View(error="x"))


def test_the_host_that_a_rank_would_be_of_without_interface():
    reports = {0: report(0, "h0"), 1: report(1, "h1", interfaces=[])}
    assert find_hosts(reports)[1] == Host("h1", [1], {})

"""What ``ringcoll probe`` makes of what was measured, without hosts or networks."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from itertools import combinations, permutations
from pathlib import Path

import pytest

from ringcoll.cluster import Leader
from ringcoll.cluster.hosts import find_hosts
from ringcoll.cluster.pair import View
from ringcoll.errors import InvalidArgument
from ringcoll.files import replace_file
from ringcoll.outputs import check_file, write_file
from ringcoll.probe import Survey, survey
from ringcoll.probe.show import verdict
from ringcoll.probe.structure import Structure, find_structure, group_name
from ringcoll.probe.tour import rounds_over
from ringcoll.probe.verdict import find_gaps, find_odd, suspects

PORT, TRIP = 1e9, 100.0
ETHERNET = {"name": "eth0", "address": "10.0.0.1", "mtu": 1500}
SHAPES = {
    "two of two": [[0, 1], [2, 3]],
    "interleaved": [[0, 2, 4], [1, 3, 5]],
    "unequal": [[0, 1, 2, 3, 4], [5, 6], [7, 8, 9]],
    "many": [[4 * i + j for j in range(4)] for i in range(5)],
}


def group_of(groups, host):
    return next(i for i, group in enumerate(groups) if host in group)


def views(count, rate=lambda a, b: PORT, trip=lambda a, b: TRIP, noise=0.2, seed=0):
    """`rate` is from a to b; who looks, receives."""
    chance = random.Random(seed)

    def about(value):
        return value * (1 + chance.uniform(-noise, noise))

    return {
        (b, a): View(True, "a", "", about(trip(a, b)), about(rate(a, b)))
        for a, b in permutations(range(count), 2)
    }


def slower_between(groups, times):
    return lambda a, b: PORT / (1 if group_of(groups, a) == group_of(groups, b) else times)


def hosts_of(count):
    told = {"interfaces": [ETHERNET], "host": "", "hostname": ""}
    return find_hosts({i: told | {"host": f"h{i}", "hostname": f"h{i}"} for i in range(count)})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 9, 24])
def test_hosts_that_are_alike_are_one_group(count, seed):
    found = find_structure(count, views(count, seed=seed))
    assert found.levels == [] and set(found.places().values()) == {"leaf1"}
    assert suspects(found, views(count, seed=seed)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times", [2.5, 10, 100])
@pytest.mark.parametrize("groups", SHAPES.values(), ids=SHAPES)
def test_racks_that_are_joined_by_slower_links(groups, times, seed):
    count = sum(map(len, groups))
    found = find_structure(count, views(count, slower_between(groups, times), seed=seed))
    assert found == Structure(count, [sorted(groups)], [])


@pytest.mark.parametrize("groups", SHAPES.values(), ids=SHAPES)
def test_racks_that_differ_in_latency_alone(groups):
    count = sum(map(len, groups))

    def trip(a, b):
        return TRIP if group_of(groups, a) == group_of(groups, b) else 6 * TRIP

    assert find_structure(count, views(count, trip=trip)).levels == [sorted(groups)]


def test_shorter_round_trips_than_python_has_are_no_distance():
    groups = SHAPES["unequal"]
    found = find_structure(
        10, views(10, trip=lambda a, b: 20 if group_of(groups, a) == group_of(groups, b) else 60)
    )
    assert found.levels == []


@pytest.mark.parametrize("seed", range(5))
def test_leaves_and_spines(seed):
    leaves = [[0, 4, 8], [1, 5], [2, 6, 10, 11], [3, 7, 9]]
    spines = [sorted(leaves[0] + leaves[1]), sorted(leaves[2] + leaves[3])]

    def rate(a, b):
        far = (group_of(leaves, a) != group_of(leaves, b)) + (
            group_of(spines, a) != group_of(spines, b)
        )
        return PORT / 4**far

    found = find_structure(12, views(12, rate, seed=seed))
    assert found.levels == [leaves, spines]
    places = found.places()
    assert [places[host] for host in (0, 1, 2, 3)] == [
        "spine1.leaf1",
        "spine1.leaf2",
        "spine2.leaf3",
        "spine2.leaf4",
    ]
    assert list(places) == [host for leaf in leaves for host in leaf]
    assert [found.distance(0, other) for other in (4, 1, 2)] == [0, 1, 2]


def test_groups_are_called_as_the_library_calls_levels():
    names = [group_name(level, 2) for level in range(4)]
    assert names == ["leaf2", "spine2", "level3-2", "level4-2"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times", [3, 10, 50])
def test_a_slow_host_is_no_rack_and_is_named(times, seed):
    hosts = hosts_of(6)
    seen = views(6, lambda a, b: PORT / (times if 2 in (a, b) else 1), seed=seed)
    found = find_structure(6, seen)
    assert found.levels == []
    assert {finding.part for finding in find_odd(hosts, seen, found)} == {"host h2"}
    assert {number for pair in suspects(found, seen) for number in pair} == set(range(6))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("times", [3, 50])
def test_a_slow_host_stands_in_its_rack_or_is_said_to_be_doubtful(times, seed):
    groups = [[0, 1, 2, 3], [4, 5, 6]]
    across = slower_between(groups, 10)
    seen = views(7, lambda a, b: min(across(a, b), PORT / (times if 2 in (a, b) else 1)), seed=seed)
    found = find_structure(7, seen)
    assert [[h for h in leaf if h != 2] for leaf in found.leaves] == [[0, 1, 3], [4, 5, 6]]
    odd = list(find_odd(hosts_of(7), seen, found))
    assert "host h2" in [finding.part for finding in odd]
    if times == 3:
        assert 2 in found.leaves[0] and found.guessed == []
    else:
        assert found.guessed == [2] and odd[-1].detail.startswith("h2 (in leaf"), odd


def test_hosts_of_another_speed_are_no_rack():
    kinds = [[0, 2, 4], [1, 3, 5]]
    rate = {0: PORT, 1: PORT / 2.5}
    seen = views(6, lambda a, b: min(rate[group_of(kinds, a)], rate[group_of(kinds, b)]))
    assert find_structure(6, seen).levels == []


def test_a_slow_pair_within_a_rack_is_named_and_looked_at_again():
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    across = slower_between(groups, 10)
    seen = views(8, lambda a, b: PORT / 8 if (a, b) == (5, 6) else across(a, b), noise=0.1)
    found = find_structure(8, seen)
    assert found.levels == [groups] and suspects(found, seen) == [(6, 5)]
    [odd] = find_odd(hosts_of(8), seen, found)
    assert odd.part == "hosts h5 and h6" and "from the first to the second" in odd.detail


@pytest.mark.parametrize("seed", range(5))
def test_pairs_that_were_not_measured_separate_nobody(seed):
    groups = SHAPES["many"]
    seen = views(20, slower_between(groups, 8), seed=seed)
    chance = random.Random(seed)
    some = {pair: view for pair, view in seen.items() if chance.random() < 0.8}
    assert find_structure(20, some).levels == [groups]
    across = {(a, b): v for (a, b), v in views(20).items() if a // 4 == b // 4}
    assert find_structure(20, across).levels == []
    assert find_structure(20, {}).levels == []


def test_what_hinders_that_all_places_are_told():
    hosts = hosts_of(3)
    reports = {i: {"hostname": f"h{i}"} for i in range(3)}
    assert find_gaps(reports, 3, hosts, views(3)) == []
    [absent] = find_gaps(reports, 4, hosts, views(3))
    assert absent.detail.startswith("rank 3 of 4 did not come")
    [lost] = find_gaps(reports, 3, hosts, {p: v for p, v in views(3).items() if 2 not in p})
    assert lost.detail.startswith("h2: measured with no other")
    [twice] = find_gaps(reports | {2: {"hostname": "h1"}}, 3, hosts, views(3))
    assert twice.part == "hosts h1" and "RINGCOLL_HOSTID" in twice.detail


@pytest.mark.parametrize("groups", [*SHAPES.values(), [[0], [1, 2, 3, 4]]])
def test_rounds_over_groups_hold_every_pair_once_and_load_uplinks_evenly(groups):
    count = sum(map(len, groups))
    seen = []
    for pairs in rounds_over(Structure(count, [groups], [])):
        players = [host for pair in pairs for host in pair]
        assert len(players) == len(set(players))
        assert len({group_of(groups, a) == group_of(groups, b) for a, b in pairs}) <= 1
        seen += [tuple(sorted(pair)) for pair in pairs]
    assert sorted(seen) == sorted(combinations(range(count), 2))


def test_rounds_over_two_levels():
    structure = Structure(8, [[[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]], [])
    tour = list(rounds_over(structure))
    assert len(tour) == 7 and all(len(pairs) == 4 for pairs in tour)
    apart = [{structure.distance(a, b) for a, b in pairs} for pairs in tour]
    assert apart == [{2}] * 4 + [{1}] * 2 + [{0}]


class Uplinks(Leader):
    """Of hosts in racks. What joins a rack to the others carries ``1 / times`` of what its hosts
    can send, and the pairs of a look share it. ``slow``: what hosts can send and receive of what
    the others can."""

    def __init__(self, racks, times, looks=1000, seed=0, slow=None):
        count = sum(map(len, racks))
        self.hosts, self.size, self.views = hosts_of(count), count, {}
        self.silent, self._firsts = set(), [*range(count)]
        self.reports = {i: {"hostname": f"h{i}"} for i in range(count)}
        self._racks, self._times, self._looks = racks, times, looks
        self._slow = slow or {}
        self._chance = random.Random(seed)

    def look(self, pairs, aims):
        self._looks -= 1
        if self._looks < 0:
            return
        across = Counter()
        for b, a in pairs:
            for way in self._uplinks(a, b):
                across[way] += 1
        for b, a in pairs:
            view = View(True, "a", "", self._about(TRIP) if aims.round_trip else None)
            if aims.rate_s:
                view.bytes_per_s = self._about(self._rate(a, b, across))
            self.views[b, a] = view.better(self.views.get((b, a), View()))

    def _rate(self, a, b, across):
        ports = [PORT * self._slow.get(host, 1) for host in (a, b)]
        ways = self._uplinks(a, b)
        shares = [len(self._racks[way[1]]) * PORT / self._times / across[way] for way in ways]
        return min(*ports, *shares)

    def _uplinks(self, a, b):
        out, into = (group_of(self._racks, host) for host in (a, b))
        return [("out of", out), ("into", into)] if out != into else []

    def _about(self, value):
        return value * (1 + self._chance.uniform(-0.2, 0.2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("times", [6, 10, 20])
@pytest.mark.parametrize("groups", [*SHAPES.values(), [list(range(8)), list(range(8, 16))]])
def test_racks_that_share_an_uplink(groups, times, seed):
    found = survey(Uplinks(groups, times, seed=seed))
    assert found.structure.levels == [groups] and found.findings == []


def test_switches_without_a_narrow_link():
    found = survey(Uplinks(SHAPES["unequal"], 1))
    assert found.structure.levels == [] and found.findings == []


@pytest.mark.parametrize("seed", range(5))
def test_a_second_look_does_not_move_a_slow_host_to_another_rack(seed):
    """Alone, its pairs with hosts of other racks are as fast as those with its own."""
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    found = survey(Uplinks(groups, 10, seed=seed, slow={2: 0.4}))
    assert found.structure == Structure(8, [groups], [])
    assert {finding.part for finding in found.findings} == {"host h2"}


def test_all_pairs_have_round_trips_and_rates_of_looks_of_their_own():
    """Behind what a rate sends, round trips are long."""
    aims = []

    class Noted(Uplinks):
        def look(self, pairs, aim):
            aims.append(aim)
            super().look(pairs, aim)

    found = survey(Noted([[*range(6)]], 1))
    assert set(found.views) == set(permutations(range(6), 2))
    assert all(view.round_trip_us and view.bytes_per_s for view in found.views.values())
    assert not any(aim.round_trip and aim.rate_s for aim in aims)


class QuietAtFirst(Uplinks):
    """While all pairs are measured for the first time, host 3 has the uplinks to itself."""

    def __init__(self, racks, times):
        super().__init__(racks, times)
        self.looked = 0

    def look(self, pairs, aims):
        self.looked += 1
        super().look(pairs, aims)

    def _rate(self, a, b, across):
        first = self.looked <= 2 * (len(self.hosts) - 1)
        return PORT if first and 3 in (a, b) else super()._rate(a, b, across)


def test_what_is_measured_over_groups_counts():
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    leader = QuietAtFirst(groups, 10)
    found = survey(leader)
    assert found.structure == Structure(8, [groups], []) and found.findings == []
    assert leader.looked >= 2 * 2 * 7


def test_without_groups_pairs_are_measured_once():
    leader = QuietAtFirst([[*range(8)]], 1)
    assert survey(leader).structure.levels == [] and leader.looked == 2 * 7


@pytest.mark.parametrize(("looks", "said"), [(8, "in the pairs that were measured."), (24, "")])
def test_a_survey_that_has_no_time_for_all_pairs_is_no_file(looks, said):
    """In the first pass, or in the second, which decides."""
    found = survey(Uplinks(SHAPES["unequal"], 10, looks=looks))
    [gap] = found.gaps
    assert (gap.part, gap.status) == ("pairs of hosts", "failed")
    assert verdict(found).endswith(said)


def a_survey(count, seen):
    return Survey(hosts_of(count), seen, find_structure(count, seen), [], [])


def test_what_is_said_in_the_end():
    groups = SHAPES["two of two"]
    assert verdict(a_survey(4, views(4, slower_between(groups, 10)))) == "2 leaves were found."
    assert verdict(a_survey(4, views(4))).startswith("No structure was found: all hosts are alike")
    few = {pair: view for pair, view in views(4).items() if pair != (0, 3)}
    assert verdict(a_survey(4, few)) == "No structure was found in the pairs that were measured."
    assert verdict(a_survey(2, views(2))).startswith("2 hosts: there is nothing to find")
    assert verdict(a_survey(1, {})).startswith("1 host: there is nothing to find")


def test_the_file_has_hosts_in_the_order_of_their_groups():
    seen = views(6, slower_between(SHAPES["interleaved"], 10))
    places = json.loads(a_survey(6, seen).topology_file())
    assert list(places) == ["h0", "h2", "h4", "h1", "h3", "h5"]
    assert list(places.values()) == ["leaf1"] * 3 + ["leaf2"] * 3


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("measured", [True, False])
def test_the_picture(count, measured, tmp_path):
    pytest.importorskip("matplotlib")
    from ringcoll.outputs import check_picture, write_picture
    from ringcoll.probe.picture import draw

    path = tmp_path / "matrix.svg"
    check_picture("--plot", path)
    write_picture("--plot", path, draw(a_survey(count, views(count) if measured else {})))
    assert path.read_text().rstrip().endswith("</svg>") and list(tmp_path.iterdir()) == [path]
    with pytest.raises(InvalidArgument, match=r"out.unheard: its name must end in one of .*svg"):
        check_picture("--plot", tmp_path / "out.unheard")


def test_a_file_that_cannot_be_written(tmp_path):
    loop, queue = tmp_path / "loop", tmp_path / "queue"
    loop.symlink_to(loop)
    os.mkfifo(queue)
    for path in (tmp_path, tmp_path / "none" / "file", loop, queue, Path("/dev/null")):
        with pytest.raises(InvalidArgument, match=r"--output .*: cannot be written"):
            check_file("--output", path)


def test_a_file_is_replaced_and_a_link_followed(tmp_path):
    path, link = tmp_path / "folder" / "file", tmp_path / "link"
    path.parent.mkdir()
    link.symlink_to(path)
    path.write_text("before")
    for place, content in ((path, "after"), (link, "by the link")):
        before = path.read_text()
        check_file("--output", place)
        assert path.read_text() == before
        write_file("--output", place, content.encode())
        assert path.read_text() == content
    assert link.is_symlink() and list(path.parent.iterdir()) == [path]


def test_a_link_that_another_user_may_have_planted_is_not_followed(tmp_path):
    path, precious = tmp_path / "file", tmp_path / "precious"
    precious.write_text("what the user needs")
    (tmp_path / f".file.{os.getpid()}").symlink_to(precious)
    write_file("--output", path, b"new")
    assert path.read_bytes() == b"new" and precious.read_text() == "what the user needs"
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"new")


def test_it_wants_a_launcher(start):
    _, said = start("probe").communicate(timeout=60)
    assert "Start it by a launcher" in said and "horovodrun" in said


def job_of(size, store):
    store.mkdir()
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "none", "MASTER_PORT": "1"}
    return job | {"RINGCOLL_STORE": f"file://{store}"}


def test_a_path_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path, start):
    """And the other ranks end with rank 0, not at their deadline."""
    job = job_of(2, tmp_path / "store")
    missing = tmp_path / "none" / "topology.json"
    ranks = [start("probe", "--output", missing, **job, RANK=str(rank)) for rank in (0, 1)]
    (out, said), _ = (rank.communicate(timeout=20) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [1, 0] and out == ""
    assert f"--output {missing}: cannot be written: No such file" in said, said


def test_a_rank_that_does_not_come_is_named_and_no_file_is_written(tmp_path, start):
    job, path = job_of(3, tmp_path / "store"), tmp_path / "topology.json"
    words = ["probe", "--output", path, "--wait", 2]
    ranks = [start(*words, **job, RANK=str(rank)) for rank in (0, 1)]
    (out, said), _ = (rank.communicate(timeout=30) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [1, 0] and not path.exists()
    assert "rank 2 of 3 did not come" in out and "1 host: there is nothing to find" in out, out
    assert "topology.json is not written: rank 2 of 3 did not come" in said, said

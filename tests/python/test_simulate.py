"""``ringcoll simulate``: predictions, the command, and what is wrong with a request."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringcoll.errors import InvalidArgument
from ringcoll.simulate import COLLECTIVES, DEFAULT_SIZES, Level, predict

MIB = 1 << 20
HOST = Level(
    level="host", ranks=2, latency_us=0.5, rank_bytes_per_us=8000, group_bytes_per_us=16000
)
NETWORK = Level(
    level="network", ranks=8, latency_us=30, rank_bytes_per_us=125, group_bytes_per_us=125
)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringcoll", "simulate", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",  # not a folder with a ringcoll/ that would be taken for the installed one
    )


def prices(line: Any) -> dict[str, float]:
    return {row["name"]: row["microseconds"] for row in line["rows"]}


def test_the_cheapest_row_is_chosen_and_none_is_below_the_bound():
    found = predict([HOST, NETWORK], [1024, MIB, 64 * MIB])
    assert (found["ranks"], found["hosts"]) == (8, 4)
    for line in found["sizes"]:
        of_rows = prices(line)
        assert of_rows[line["chosen"]] == min(of_rows.values())
        assert line["bound_us"] == pytest.approx(2 * 3 / 4 * line["bytes"] / 125)
        assert min(of_rows.values()) >= line["bound_us"]
    small, large = found["sizes"][0], found["sizes"][-1]
    # A ring in one piece: 14 rounds over the network. Lanes come near the bound.
    assert prices(small)["ring"] > prices(small)["binomial/recursive_doubling"]
    assert prices(large)["direct/ring"] < 1.05 * large["bound_us"]
    assert "direct" not in prices(small)  # not offered between hosts


def test_one_host_has_its_own_rows_and_no_bound():
    found = predict([HOST], [MIB])
    assert "direct" in prices(found["sizes"][0]) and found["sizes"][0]["bound_us"] is None


def test_one_host_of_two_sockets_has_rows_over_these():
    sockets = Level(HOST, level="socket", ranks=8, group_bytes_per_us=128000)
    across = Level(HOST, ranks=16, rank_bytes_per_us=4000, group_bytes_per_us=16000)
    found = predict([sockets, across], [64 * MIB])
    line = found["sizes"][0]
    # What crosses is n, and by "direct" 8 n: each rank gets a 16th from each of the other socket.
    assert found["hosts"] == 1 and line["chosen"] != "direct"
    assert prices(line)["direct/ring"] < 0.75 * prices(line)["direct"]
    assert "direct" in prices(predict([across], [MIB])["sizes"][0])
    assert "direct/ring" not in prices(predict([across], [MIB])["sizes"][0])


def test_sockets_of_hosts_do_not_make_hosts_of_these():
    sockets = Level(HOST, level="socket", ranks=1)
    found = predict([sockets, HOST, NETWORK], [64 * MIB])
    assert (found["ranks"], found["hosts"]) == (8, 4)
    line = found["sizes"][0]
    assert line["bound_us"] == pytest.approx(2 * 3 / 4 * line["bytes"] / 125)
    assert prices(line)["direct/ring"] < 1.05 * line["bound_us"]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_prices(collective: str):
    (line,) = predict([HOST, NETWORK], [MIB], collective)["sizes"]
    assert line["chosen"] in prices(line) and all(price > 0 for price in prices(line).values())
    # Nothing is below what a host's port needs.
    assert collective == "barrier" or min(prices(line).values()) >= line["bound_us"] * 0.999


def test_the_last_groups_need_not_be_full():
    found = predict([HOST, {**NETWORK, "ranks": 7}], [MIB])
    assert (found["ranks"], found["hosts"]) == (7, 4)
    found = predict([HOST, {**NETWORK, "level": "leaf", "ranks": 4}, {**NETWORK, "ranks": 7}], [4])
    assert (found["ranks"], found["hosts"]) == (7, 4)


def test_a_named_row_slots_and_pieces_are_taken():
    found = predict([HOST, NETWORK], [MIB], algorithm="ring", slots=2, segment_bytes=256 << 10)
    (line,) = found["sizes"]
    ring = next(row for row in line["rows"] if row["name"] == "ring")
    assert (line["chosen"], found["slots"]) == ("ring", 2)
    assert (ring["piece_bytes"], ring["pieces"]) == (256 << 10, 4)


def test_what_is_not_given_is_assumed():
    levels = predict([Level(level="host", ranks=2), Level(level="network", ranks=4)], [4])["levels"]
    assert all(level["latency_us"] > 0 and level["rank_bytes_per_us"] > 0 for level in levels)


def test_crowded_hosts_pay_for_messages_and_not_for_rounds():
    levels = [
        Level(level="host", ranks=4, latency_us=20, rank_bytes_per_us=4000),
        Level(level="network", ranks=16, latency_us=100, rank_bytes_per_us=125),
    ]

    def price(row: str, **more: bool) -> float:
        [line] = predict(levels, [1024], **more)["sizes"]
        [found] = [r["microseconds"] for r in line["rows"] if r["name"] == row]
        assert found is not None
        return found

    one_rank = "binomial/recursive_doubling"  # of each host crosses the network
    assert price(one_rank, crowded=True) < price(one_rank) / 2
    assert price("direct/ring", crowded=True) > price(one_rank, crowded=True) * 3


def test_four_thousand_ranks():
    leaf, spine = {**NETWORK, "level": "leaf", "ranks": 128}, {**NETWORK, "ranks": 4096}
    found = predict([HOST, leaf, spine], [1024, 64 * MIB])
    assert found["ranks"] == 4096
    assert all(None not in prices(line).values() for line in found["sizes"])
    # Rounds as many as ranks, and nobody has worked out a shorter way to count them.
    (line,) = predict([HOST, leaf, spine], [MIB], "broadcast")["sizes"]
    assert prices(line)["scatter_allgather"] is None and prices(line)["binomial"] > 0


def test_messages_are_those_of_the_schedule():
    found = predict([HOST, NETWORK], [MIB], algorithm="ring", messages=True)
    assert len(found["rounds"]) == 14
    for flat in found["rounds"]:
        assert sorted(flat[0::3]) == sorted(flat[1::3]) == list(range(8))
        assert all(
            to == (origin + 1) % 8 for origin, to in zip(flat[0::3], flat[1::3], strict=True)
        )
        assert flat[2::3] == pytest.approx([1 / 8] * 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"collective": "sum"}, 'collective is "sum"; there is allreduce, '),
        ({"dtype": "float"}, 'dtype is "float"'),
        ({"sizes": []}, "sizes: an array of 1"),
        ({"sizes": [2]}, "sizes[0] is 2: a whole number from 4"),
        ({"sizes": [4, 1.5]}, "sizes[1] is 1.5"),
        ({"sizes": [1 << 63]}, "sizes[0] is 9223372036854775808"),
        ({"levels": []}, "levels: an array of 1 to 16"),
        ({"levels": ["host"]}, "levels[0] is no object"),
        ({"levels": [{"level": "host"}]}, "levels[0].ranks is missing"),
        ({"levels": [{"level": 3, "ranks": 1}]}, "levels[0].level is 3"),
        ({"levels": [{"level": 3, "ranks": 1}, NETWORK]}, "levels[0].level is 3"),
        ({"levels": [{"ranks": 1}, NETWORK]}, "levels[0].level is missing"),
        ({"levels": [HOST | {"ranks": 0}]}, "levels[0].ranks is 0"),
        ({"levels": [HOST | {"ranks": 1 << 40}]}, "levels[0].ranks is 1099511627776"),
        ({"levels": [HOST | {"latency_us": -1}]}, "levels[0].latency_us is -1"),
        ({"levels": [HOST | {"rank_bytes_per_us": 0}]}, "levels[0].rank_bytes_per_us is 0"),
        ({"levels": [HOST | {"lateny_us": 1}]}, "levels[0].lateny_us is not known"),
        ({"levels": [HOST, NETWORK | {"ranks": 1}]}, "levels[1].ranks is 1: a multiple of the 2"),
        ({"levels": [HOST, NETWORK | {"ranks": 5}, NETWORK]}, "levels[1].ranks is 5"),
        ({"algorithm": "rnig"}, 'there is no "rnig"'),
        ({"slots": 65}, "slots is 65"),
        ({"arena_bytes": 1}, "raise RINGCOLL_ARENA_BYTES=1 or lower"),
        ({"segment_bytes": "1M"}, 'segment_bytes is "1M"'),
        ({"messages": 1}, "messages is neither true nor false"),
        ({"messages": True}, "algorithm is missing"),
        ({"messages": True, "algorithm": "binomial"}, '"binomial" is none of allreduce'),
        ({"combined_bytes_per_us": 0}, "combined_bytes_per_us is 0"),
        ({"ranks": 3}, "ranks is not known"),
    ],
)
def test_nonsense_is_refused_by_name(change: dict[str, Any], said: str):
    request: dict[str, Any] = {"levels": [HOST, NETWORK], "sizes": [MIB], **change}
    with pytest.raises(InvalidArgument) as caught:
        predict(**request)
    assert said in str(caught.value)


def test_the_command_prints_a_table():
    done = command("--hosts", "16", "--ranks", "4", "--network", "10gbit", "--latency", "20us")
    assert done.returncode == 0, done.stderr
    assert "64 ranks on 16 hosts" in done.stdout and "256 MiB" in done.stdout
    assert "direct/ring" in done.stdout and " *" in done.stdout


def test_the_command_as_json_with_leaves():
    arguments = ["--hosts", "16", "--ranks", "2", "--leaf", "8", "--oversubscription", "4"]
    done = command(
        *arguments, "--network", "10gbit", "--latency", "10us", "--sizes", "1K,1M", "--json"
    )
    found = json.loads(done.stdout)
    assert [level["level"] for level in found["levels"]] == ["host", "leaf", "spine"]
    assert found["levels"][2]["group_bytes_per_us"] == 1250 * 8 / 4
    assert [level.get("latency_us") for level in found["levels"][1:]] == [10, 20]
    assert [line["bytes"] for line in found["sizes"]] == [1024, MIB]


def test_ports_of_a_host_are_shared_out():
    """Lanes have one each, which halves the time of a large vector; one rank alone has its own."""

    def prices(*arguments: str) -> dict[str, float]:
        links = ["--network", "10gbit", "--latency", "1us", "--sizes", "256M", "--json"]
        done = command("--hosts", "16", "--ranks", "2", *links, *arguments)
        (line,) = json.loads(done.stdout)["sizes"]
        return {row["name"]: row["microseconds"] for row in line["rows"]}

    one, two = prices(), prices("--ports", "2")
    assert two["direct/ring"] < 0.6 * one["direct/ring"]
    assert two["ring"] == pytest.approx(one["ring"])


def test_the_command_says_where_there_is_no_price():
    done = command("--hosts", "4096", "--collective", "broadcast", "--sizes", "1M")
    assert done.returncode == 0 and "no price" in done.stdout


def test_costs_come_from_a_file(tmp_path: Path):
    path = tmp_path / "costs.json"
    of_network = {"latency_us": 31, "rank_bytes_per_us": 117, "group_bytes_per_us": 118}
    path.write_text(json.dumps({"levels": {"host": {"latency_us": 7}, "rack": of_network}}))
    done = command("--hosts", "2", "--costs", str(path), "--sizes", "1M", "--json")
    levels = json.loads(done.stdout)["levels"]
    assert levels[0]["latency_us"] == 7
    assert levels[1] == {"level": "rack", "ranks": 2, **of_network}


def test_the_command_knows_sockets(tmp_path: Path):
    path = tmp_path / "costs.json"
    costs = {
        name: {"latency_us": 1, "rank_bytes_per_us": rank, "group_bytes_per_us": 4 * rank}
        for name, rank in (("socket", 8000), ("host", 2000), ("network", 1250))
    }
    path.write_text(json.dumps({"levels": costs}))
    shape = ["--hosts", "2", "--ranks", "8", "--sizes", "1M", "--json", "--costs", str(path)]
    bound, free = (
        json.loads(command(*shape, *more).stdout)["levels"] for more in (["--sockets", "2"], [])
    )
    ranks = [(level["level"], level["ranks"], level["rank_bytes_per_us"]) for level in bound]
    assert ranks == [("socket", 4, 8000), ("host", 8, 2000), ("network", 16, 1250)]
    assert free == bound[1:]
    path.write_text(json.dumps({"levels": {name: costs[name] for name in ("host", "network")}}))
    done = command(*shape, "--sockets", "2")
    assert done.returncode == 1 and "no level below host" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "--hosts"),
        (["--hosts", "0"], 2, "'0' is not a positive number"),
        (["--hosts", "2", "--network", "10"], 2, "such as 10gbit"),
        (["--hosts", "2", "--latency", "1h"], 2, "such as 20us"),
        (["--hosts", "2", "--sizes", "1M..1K"], 2, "ends before it begins"),
        (["--hosts", "2", "--leaf", "2", "--network", "1gbit"], 1, "--leaf 2"),
        (["--hosts", "4", "--leaf", "2"], 1, "--leaf needs --network"),
        (["--hosts", "4", "--ports", "2"], 1, "--ports 2 is more than --ranks 1"),
        (
            ["--hosts", "1", "--ranks", "6", "--sockets", "4"],
            1,
            "must divide equally among the sockets",
        ),
        (["--hosts", "1", "--ranks", "2", "--sockets", "2"], 1, "at least two"),
        (["--hosts", "4", "--oversubscription", "4"], 1, "give --leaf"),
        (["--hosts", "2", "--costs", "/nonexistent"], 1, "No such file"),
        (["--hosts", "2", "--costs", "/dev/null"], 1, 'an object "levels"'),
        (["--hosts", "2", "--costs", "/dev/null", "--latency", "1us"], 1, "already"),
        (["--hosts", "70000"], 1, "levels[1].ranks is 70000"),
        (["--hosts", "70000", "--plot", "/none/out.svg"], 1, "--plot"),  # before the work
        (["--hosts", "1", "--leaf", "4"], 1, "--leaf describes links between hosts"),
        (["--hosts", "1", "--network", "10gbit"], 1, "--network describes links between hosts"),
        (["--hosts", "1", "--latency", "20us"], 1, "--latency describes links between hosts"),
    ],
)
def test_the_command_refuses_nonsense(arguments: list[str], status: int, said: str):
    done = command(*arguments)
    assert done.returncode == status and said in done.stderr, done.stderr


def test_costs_of_other_levels_are_refused(tmp_path: Path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"levels": {"leaf": {}, "spine": {}}}))
    done = command("--hosts", "2", "--costs", str(path))
    assert done.returncode == 1 and "2 levels above host (leaf, spine)" in done.stderr


def test_the_plot(tmp_path: Path):
    path = tmp_path / "out.svg"
    done = command("--hosts", "4", "--sizes", DEFAULT_SIZES, "--plot", str(path))
    if importlib.util.find_spec("matplotlib") is None:
        assert done.returncode == 1 and "--plot needs matplotlib" in done.stderr
    else:
        assert done.returncode == 0 and "</svg>" in path.read_text()
        done = command("--hosts", "4", "--plot", str(tmp_path / "out.unheard"))
        assert done.returncode == 1 and "out.unheard" in done.stderr


def test_without_matplotlib_the_plot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ringcoll import cli

    for name in ("matplotlib", "matplotlib.backends.backend_agg"):  # another test may have it
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["simulate", "--hosts", "2", "--plot", str(tmp_path / "out.svg")]) == 1

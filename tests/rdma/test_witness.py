"""What an independent program sees of the devices, and what it cannot do to a job as a hostile
neighbour."""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ringcoll import info

pytestmark = pytest.mark.guest(cpus=2, timeout=300)

WITNESS = Path(__file__).with_name("witness.py")
VERBS = {"RINGCOLL_TRANSPORT": "verbs"}


def witness(*arguments: object) -> str:
    """On Debian's interpreter, for which its pyverbs is built."""
    command = ["/usr/bin/python3", str(WITNESS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_ringcoll() -> list[dict]:
    """ringcoll's discovery, in the witness's words."""
    verbs = next(row for row in info.library_info()["transports"] if row["name"] == "verbs")
    limits = ("queue_pairs", "work_requests", "memory_region_bytes")
    same = ("number", "state", "link_layer", "lid", "active_mtu_bytes", "max_message_bytes")
    return [
        {
            "name": device["name"],
            "firmware": device["firmware"],
            **{name: device["limits"][name] for name in limits},
            "ports": [
                {**{name: port[name] for name in same}, "gids": [gid(row) for row in port["gids"]]}
                for port in device["ports"]
            ],
        }
        for device in verbs["found"]["devices"]
    ]


def gid(row: dict) -> dict:
    address = ipaddress.ip_address(row["gid"])
    if address.version == 4:
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    interface = socket.if_nametoindex(row["interface"]) if row["interface"] else 0
    return {
        "index": row["index"],
        "gid": str(address),
        "type": row["type"],
        "interface": interface,
    }


def test_it_sees_what_ringcoll_sees(device):
    seen = json.loads(witness("survey"))
    assert device.name in [found["name"] for found in seen]
    assert of_ringcoll() == seen


def test_a_hostile_neighbour_harms_no_job(start_ranks, device):
    count = 200_000

    def body(world):
        mine = (np.arange(count) * (world.rank + 1) % 1000).astype("f4")
        wanted = sum((np.arange(count) * (r + 1) % 1000).astype("f4") for r in range(world.size))
        rounds = 0
        while world.allreduce(np.array([Path("mark.over").exists()], "i4"), "max")[0] == 0:
            assert (world.allreduce(mine) == wanted).all()
            rounds += 1
            Path("mark.running").touch()
        return rounds

    job = start_ranks(2, body, env=VERBS)
    job.wait_for("running", 60)
    with device.counting() as moved:
        found = json.loads(witness("attack", *job.pids))
    (job.folder / "mark.over").touch()
    outcomes = job.join(60)
    assert all(outcome.value for outcome in outcomes), [outcome.output for outcome in outcomes]
    assert found["controls"] == {"write": "success", "read": "success"}
    assert found["regions"] >= 4 and found["places"] >= 2, "the arena and the inbox of each rank"
    assert found["queue_pairs"] == 2
    for attempt in found["attempts"]:
        to_the_job = "queue pair of the job" in attempt["how"]
        refusals = ["retry exceeded", "remote access error", "remote invalid request"]
        allowed = refusals if to_the_job else ["remote access error"]
        assert attempt["status"] in allowed, found["attempts"]
    assert device.packets_sent(moved) > len(found["attempts"])

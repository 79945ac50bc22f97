"""How the ranks of a job meet, and how rank 0 leads them, over loopback."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import permutations
from pathlib import Path

import pytest

from ringcoll.checkup import check
from ringcoll.cluster import pair, take_part
from ringcoll.cluster.board import open_board
from ringcoll.environment import Job
from ringcoll.errors import InvalidArgument, TransportError
from ringcoll.findings import FAILED


@pytest.mark.parametrize("store", ["local://x", "tcp://host", "ftp://h:1", "file:///nowhere"])
def test_where_ranks_cannot_meet(store):
    with pytest.raises(InvalidArgument):
        open_board(store, "", 1, time.monotonic())


@pytest.fixture
def store():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def test_a_port_that_is_taken(store):
    end = time.monotonic() + 5
    first = open_board(store, "", 0, end)
    with pytest.raises(TransportError, match="port free"):
        open_board(store, "", 0, end)
    client = open_board(store, "", 1, end)
    client.put("key", {"a": 1})
    assert first.get("key") == {"a": 1} and client.get("nothing") is None
    client.close()
    first.close()


def test_a_board_that_is_closed_leaves_port_and_thread(store):
    before = set(threading.enumerate())
    for _ in range(2):
        open_board(store, "", 0, time.monotonic()).close()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) <= before


def test_a_board_of_files_believes_no_link_and_leaves_others_files_alone(tmp_path):
    folder, precious = tmp_path / "board", tmp_path / "precious"
    folder.mkdir()
    precious.write_text('{"a": 1}')
    board = open_board(f"file://{folder}", "", 0, time.monotonic() + 5)
    (folder / "ringcoll-cluster.key").symlink_to(precious)
    with pytest.raises(InvalidArgument, match=r"symbolic link of user .*uid"):
        board.get("key")
    os.mkfifo(folder / "ringcoll-cluster.queue")
    with pytest.raises(InvalidArgument, match="no regular file"):
        board.get("queue")
    board.put("key", {"a": 2})
    assert board.get("key") == {"a": 2} and board.get("nothing") is None
    board.close()
    assert precious.read_text() == '{"a": 1}'
    assert [path.name for path in folder.iterdir()] == ["ringcoll-cluster.queue"]


@pytest.fixture
def open_to_all():
    """A directory in which every user can make files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_a_second_user_is_told_whose_board_it_is(open_to_all):
    end = time.monotonic() + 5
    mine = open_board(f"file://{open_to_all}", "", 0, end)
    mine.put("key", {"a": 1})
    os.seteuid(65534)
    try:
        theirs = open_board(f"file://{open_to_all}", "", 1, end)
        with pytest.raises(InvalidArgument, match=r"user root \(uid 0\).*uid 65534"):
            theirs.get("key")
        theirs.put("other", {"b": 2})
    finally:
        os.seteuid(0)
    with pytest.raises(InvalidArgument, match=r"uid 65534.*user root"):
        mine.get("other")
    mine.close()
    assert [path.name for path in open_to_all.iterdir()] == ["ringcoll-cluster.other"]


class Rendezvous(BaseHTTPRequestHandler):
    """horovodrun's server, in short. ``segments``: how large those of its connections are."""

    notes: dict[str, bytes]
    segments: list[int]

    def do_PUT(self):
        self.notes[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self):
        self._answer(200 if self.path in self.notes else 404, self.notes.get(self.path, b""))

    def _answer(self, status, body):
        self.segments.append(self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_horovodruns_server_is_asked_in_small_packets():
    """They arrive where those of full length get lost."""
    Rendezvous.notes, Rendezvous.segments = {}, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Rendezvous) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            store = f"horovod://127.0.0.1:{server.server_port}/scope"
            board = open_board(store, "", 1, time.monotonic() + 5)
            board.put("key", {"a": 1})
            assert board.get("key") == {"a": 1} and board.get("nothing") is None
        finally:
            server.shutdown()
            thread.join()
    assert len(Rendezvous.segments) == 4 and max(Rendezvous.segments) <= 500


class RefusesOnce:
    """A socket of datagrams whose first answer a firewall forbids."""

    def __init__(self, real):
        self._real, self._left = real, 1

    def sendto(self, *arguments):
        self._left -= 1
        if self._left == 0:
            raise PermissionError(1, "Operation not permitted")
        return self._real.sendto(*arguments)

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_a_refused_datagram_does_not_end_the_service():
    service = pair.Service(0)
    service._datagrams = RefusesOnce(service._datagrams)
    service.start("run")
    try:
        assert pair._path_mtu("127.0.0.1", service.ports[1], "run") == pair.MAX_MTU
    finally:
        service.close()


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_is_killed_after_the_meeting(size, start, tmp_path, monkeypatch):
    """It is named, it is waited for once, and the others are examined."""
    limit_s = 6.0
    monkeypatch.setattr(pair, "LIMIT_S", limit_s)
    monkeypatch.setenv("RINGCOLL_INTERFACE", "lo")
    monkeypatch.setenv("RINGCOLL_HOSTID", "h0")
    store, last = f"file://{tmp_path}", size - 1
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "none", "MASTER_PORT": "1"}
    job |= {"RINGCOLL_STORE": store, "RINGCOLL_INTERFACE": "lo"}
    ranks = {
        rank: start("doctor", **job, RANK=str(rank), RINGCOLL_HOSTID=f"h{rank}")
        for rank in range(1, size)
    }

    def lead(leader):
        ranks[last].kill()
        begin = time.monotonic()
        return check(leader), time.monotonic() - begin

    found, seconds = take_part(Job(0, size, store, "torchrun", False), lead, 60, 120)
    assert set(found.views) == set(permutations(range(last), 2))
    failed = {each.part: each.detail for each in found.findings if each.status == FAILED}
    assert failed["ranks"].startswith(f"rank {last} stopped answering"), failed
    assert not any(f"h{last}" in part for part in failed), failed
    assert not any("--limit" in each.detail for each in found.findings)
    assert seconds < 3 * limit_s  # of four, three looks are its own
    assert [ranks[rank].wait(20) for rank in range(1, last)] == [0] * (size - 2)

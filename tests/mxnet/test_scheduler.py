"""How the processes of MXNet's launchers meet."""

from __future__ import annotations

import select
import socket
import threading

import pytest
from launched import free_port

from ringcoll.errors import InvalidArgument, Timeout
from ringcoll.mxnet import scheduler
from ringcoll.mxnet.scheduler import Lines, Plan, Scheduler

LIMIT_S = 20.0
ENVIRON = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
}


def plan(workers=2, servers=1, limit_s=LIMIT_S):
    return Plan("scheduler", "127.0.0.1", free_port(), workers, servers, limit_s)


class Running:
    """A scheduler in a thread; ``error`` is that with which it has ended."""

    def __init__(self, plan):
        self.plan, self.error = plan, None
        scheduler = Scheduler(plan)
        self._thread = threading.Thread(target=self._run, args=[scheduler], daemon=True)
        self._thread.start()

    def _run(self, scheduler):
        try:
            scheduler.run()
        except Exception as error:
            self.error = error

    def come(self, **hello) -> Lines:
        lines = scheduler.connect(self.plan)
        lines.send(hello)
        return lines

    def ended(self, timeout=LIMIT_S):
        self._thread.join(timeout)
        return not self._thread.is_alive()


def test_all_meet_and_end_with_the_workers():
    job = Running(plan())
    server = job.come(role="server")
    workers = [job.come(role="worker", store=f"tcp://h{number}:1") for number in range(2)]
    told = [worker.receive(LIMIT_S) for worker in workers]
    assert [each["rank"] for each in told] == [0, 1]
    assert {each["store"] for each in told} == {"tcp://h0:1"}
    workers[0].send({"address": "ringcoll://h0:2/mxnet"})
    place = server.receive(LIMIT_S)
    assert place == {"address": "ringcoll://h0:2/mxnet", "key": told[0]["key"]}
    server.send({"serving": True})
    assert [worker.receive(LIMIT_S) for worker in workers] == [{"servers": 1}] * 2
    workers[0].close()
    assert not job.ended(timeout=0.2)
    workers[1].close()
    assert job.ended() and job.error is None
    assert server.receive(LIMIT_S) is None


def test_workers_wait_for_the_servers():
    job = Running(plan(workers=1))
    worker = job.come(role="worker", store="tcp://h:1")
    assert not select.select([worker._socket], [], [], 0.2)[0]
    job.come(role="server")
    assert worker.receive(LIMIT_S)["rank"] == 0


def test_a_job_without_servers():
    job = Running(plan(workers=1, servers=0))
    worker = job.come(role="worker", store="tcp://h:1")
    assert worker.receive(LIMIT_S)["rank"] == 0
    worker.send({"address": "x"})
    assert worker.receive(LIMIT_S) == {"servers": 0}
    worker.close()
    assert job.ended() and job.error is None


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\n", b"{}\n", b"[1]\n", b'{"role": "boss"}\n', b""]
)
def test_a_stranger_is_ignored(said):
    job = Running(plan(workers=1, servers=0))
    with socket.create_connection(("127.0.0.1", job.plan.port)) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(LIMIT_S)
        assert stranger.recv(100) == b""
    worker = job.come(role="worker", store="tcp://h:1")
    assert worker.receive(LIMIT_S)["rank"] == 0


def test_one_too_many_is_turned_away():
    job = Running(plan())
    first = [job.come(role="worker", store="tcp://h:1") for _ in range(2)]
    assert job.come(role="worker", store="tcp://h:1").receive(LIMIT_S) is None
    job.come(role="server")
    assert [each.receive(LIMIT_S)["rank"] for each in first] == [0, 1]


def test_who_is_missing_is_said():
    job = Running(plan(limit_s=0.5))
    worker = job.come(role="worker", store="tcp://h:1")
    assert job.ended()
    assert isinstance(job.error, Timeout)
    assert "1 of 2 workers, 0 of 1 servers" in str(job.error)
    assert worker.receive(LIMIT_S) is None


def test_one_that_ends_while_they_meet_ends_the_job():
    job = Running(plan(workers=2, servers=0))
    workers = [job.come(role="worker", store="tcp://h:1") for _ in range(2)]
    assert workers[0].receive(LIMIT_S)["rank"] == 0
    workers[0].close()
    assert workers[1].receive(LIMIT_S)["rank"] == 1
    assert workers[1].receive(LIMIT_S) is None
    assert job.ended() and "ended while all of them met" in str(job.error)


def test_no_scheduler():
    with pytest.raises(Timeout, match="DMLC_PS_ROOT_URI"):
        scheduler.connect(plan(limit_s=0.3))


def test_the_plan_is_that_of_the_launcher():
    found = Plan.of(ENVIRON | {"RINGCOLL_TIMEOUT_S": "7"})
    assert found == Plan("worker", "127.0.0.1", 9000, 2, 1, 7.0)
    without = {name: value for name, value in ENVIRON.items() if name != "DMLC_ROLE"}
    assert Plan.of(without, role="server").role == "server"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DMLC_ROLE", "boss"),
        ("DMLC_PS_ROOT_URI", ""),
        ("DMLC_PS_ROOT_PORT", "0"),
        ("DMLC_NUM_WORKER", "0"),
        ("DMLC_NUM_WORKER", "two"),
        ("DMLC_NUM_SERVER", "-1"),
    ],
)
def test_a_wrong_variable_is_named(name, value):
    with pytest.raises(InvalidArgument, match=name):
        Plan.of(ENVIRON | {name: value})

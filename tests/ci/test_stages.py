"""Stages: a log and a time for each, an end at the limit, and nothing left running.

Each test drives a small program of its own, for the reaper is a property of a whole process.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import stages

CI = Path(__file__).resolve().parent.parent.parent / "ci"


def _drive(tmp_path, body, imports="", **more):
    """Starts a driver whose body is `body`; its logs go to tmp_path."""
    program = (
        f"import sys; sys.path.insert(0, {str(CI)!r})\n"
        "from pathlib import Path\n"
        "from support import stages\n"
        f"{imports}\n"
        f"stages.LOGS = Path({str(tmp_path)!r})\n"
        "def said():\n"
        "    log = stages.LOGS / 'x.log'\n"
        "    return log.exists() and log.read_text().count('\\n') > 1\n"
        f"def body():\n{body}\n"
        "stages.main(body)\n"
    )
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)


def _wait_gone(pid, limit_s=5):
    end = time.monotonic() + limit_s
    while not stages.has_ended(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return stages.has_ended(pid)


def test_failed_stage_shows_the_end_of_its_log(tmp_path):
    body = "    stages.must(stages.run(['sh', '-c', 'echo because; exit 3'], 'x'))\n    return 0"
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert driver.returncode == 1
    assert "exit status 3" in said
    assert "| because" in said
    assert "because" in (tmp_path / "x.log").read_text()


def test_a_command_in_the_background_leaves_the_processors_to_others(tmp_path):
    look = ["sh", "-c", "nice; cat /proc/self/autogroup; echo $0", "its argument"]
    body = f"    stages.must(stages.run(stages.in_background({look}), 'x'))\n    return 0"
    driver = _drive(tmp_path, body)
    driver.communicate(timeout=20)
    _command, niceness, *group, argument = (tmp_path / "x.log").read_text().splitlines()
    assert driver.returncode == 0
    assert (niceness, argument) == ("19", "its argument")
    if autogroups():
        assert group[0].endswith(" nice 19")


def autogroups():
    """Whether this kernel gives each session a share of the processors."""
    switch = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return switch.exists() and switch.read_text().strip() == "1"


def test_limit_ends_a_command_and_its_children(tmp_path):
    body = (
        "    out = stages.run(['sh', '-c', 'sleep 60 & echo $!; wait'], 'x', limit_s=0.5)\n"
        "    print(out.status)\n    return 0"
    )
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert said.strip() == "None"
    assert _wait_gone(int((tmp_path / "x.log").read_text().split()[-1]))


def test_orphan_in_its_own_session_is_found_and_ended(tmp_path):
    body = (
        "    stages.run(['sh', '-c', 'setsid sleep 60 & echo $!'], 'x')\n"
        "    print('left', stages.end_leftovers(0.2))\n    return 0"
    )
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert "sleep 60" in said
    assert _wait_gone(int((tmp_path / "x.log").read_text().split()[-1]))


def test_a_command_that_is_waited_for_is_no_leftover(tmp_path):
    """One in another thread ends by itself, and with its own status."""
    body = (
        "    from concurrent.futures import ThreadPoolExecutor\n"
        "    script = 'echo in; sleep 1 & wait; exit 3'\n"
        "    started = 'setsid sleep 60 & until grep -qx sleep /proc/$!/comm; do :; done'\n"
        "    beside = ThreadPoolExecutor(1).submit(stages.run, ['sh', '-c', script], 'x')\n"
        "    while not said(): stages.time.sleep(0.02)\n"
        "    stages.run(['sh', '-c', started], 'y')\n"
        "    print(stages.end_leftovers(), beside.result().status)\n    return 0"
    )
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert said.strip() == "['sleep 60'] 3"


def test_an_orphan_that_ends_is_not_kept(tmp_path):
    """While its command runs on: who waits for the end of a PID namespace waits for its zombies."""
    script = (
        "orphan=$(setsid sh -c 'sleep 0.1 & echo $!'); "
        "while [ -e /proc/$orphan ]; do sleep 0.05; done; echo gone"
    )
    body = f"    stages.run(['sh', '-c', {script!r}], 'x', limit_s=10)\n    return 0"
    driver = _drive(tmp_path, body)
    driver.communicate(timeout=20)
    assert (tmp_path / "x.log").read_text().splitlines()[-1] == "gone"


def test_the_end_ends_what_another_thread_waits_for(tmp_path):
    body = (
        "    from concurrent.futures import ThreadPoolExecutor\n"
        "    command = ['sh', '-c', 'echo $$; sleep 60']\n"
        "    beside = ThreadPoolExecutor(1).submit(stages.run, command, 'x')\n"
        "    beside.add_done_callback(lambda done: print(done.result().reason()))\n"
        "    while not said(): stages.time.sleep(0.02)\n"
        "    return 5"
    )
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert (driver.returncode, said.strip()) == (5, "ended by SIGKILL")
    assert _wait_gone(int((tmp_path / "x.log").read_text().split()[-1]))


def _said(log):
    """The last word of the log, once its command has written one."""
    end = time.monotonic() + 10
    while time.monotonic() < end and not (log.exists() and log.read_text().count("\n") > 1):
        time.sleep(0.02)
    return log.read_text().split()[-1]


def test_terminated_driver_leaves_nothing(tmp_path):
    body = "    stages.run(['sh', '-c', 'setsid sleep 60 & echo $!; wait'], 'x')\n    return 0"
    driver = _drive(tmp_path, body)
    child = int(_said(tmp_path / "x.log"))
    assert not stages.has_ended(child)
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.wait(timeout=20) == 128 + signal.SIGTERM
    assert _wait_gone(child)


def test_terminated_driver_waits_for_no_thread_and_begins_nothing_more(tmp_path):
    body = (
        "    from concurrent.futures import ThreadPoolExecutor\n"
        "    def both():\n"
        "        stages.run(['sh', '-c', 'echo $$; sleep 60'], 'x')\n"
        "        stages.run(['sh', '-c', 'echo $$; sleep 60'], 'y')\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        list(pool.map(lambda _: both(), [0]))\n"
        "    return 0"
    )
    driver = _drive(tmp_path, body)
    child = int(_said(tmp_path / "x.log"))
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.wait(timeout=20) == 128 + signal.SIGTERM
    assert _wait_gone(child)
    log = tmp_path / "y.log"
    assert not log.exists() or log.read_text().count("\n") == 1  # the command, not what it says


def test_driver_that_is_terminated_while_it_forks_ends(tmp_path):
    """Python prints what is raised where modules are told of a fork, and goes on."""
    imports = (
        "import os, signal, time\n"
        "end = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.register_at_fork(after_in_parent=end)"
    )
    body = "    if os.fork() == 0:\n        os._exit(0)\n    time.sleep(20)\n    return 0"
    driver = _drive(tmp_path, body, imports)
    assert driver.wait(timeout=15) == 128 + signal.SIGTERM


def test_terminated_driver_lets_a_command_finish_that_must(tmp_path):
    body = (
        "    stages.run(['sh', '-c', 'echo in; sleep 1; echo out'], 'x', finish=True)\n    return 0"
    )
    driver = _drive(tmp_path, body)
    assert _said(tmp_path / "x.log") == "in"
    os.kill(driver.pid, signal.SIGTERM)
    assert driver.wait(timeout=20) == 128 + signal.SIGTERM
    assert _said(tmp_path / "x.log") == "out"


def test_stage_prints_its_title_and_time(tmp_path):
    body = "    with stages.stage('thinking'):\n        pass\n    return 7"
    driver = _drive(tmp_path, body)
    said, _ = driver.communicate(timeout=20)
    assert said == "thinking ... 0 s\n"
    assert driver.returncode == 7


def test_cache_is_xdg_s(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stages.cache_folder("rdma-vm") == tmp_path / "ringcoll" / "rdma-vm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert stages.cache_folder("rdma-vm") == Path.home() / ".cache" / "ringcoll" / "rdma-vm"

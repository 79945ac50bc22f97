"""The command ``ringcoll``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import ringcoll
from ringcoll import compare, info
from ringcoll.errors import Error


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RINGCOLL_")}
    return subprocess.run(
        [sys.executable, "-m", "ringcoll", *arguments],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",  # not a folder with a ringcoll/ that would be taken for the installed one
    )


def test_doctor_finds_that_it_can_run():
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "transport shm",
        "transport tcp",
        "interface lo",
        "memlock",
        "/dev/shm",
        "horovod",
    ):
        assert part in done.stdout
    assert "can run here" in done.stdout


def test_doctor_as_json():
    done = command("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["can_run"] is True
    assert {"part", "status", "detail"} == set(found["findings"][0])


def test_doctor_says_what_is_wrong():
    done = command("doctor", RINGCOLL_SLOTS="100000")
    assert done.returncode == 1 and "RINGCOLL_SLOTS" in done.stdout and "0 to 64" in done.stdout
    done = command("doctor", RINGCOLL_TIMEOUT="3")
    assert done.returncode == 0 and "did you mean RINGCOLL_TIMEOUT_S" in " ".join(
        done.stdout.split()
    )
    done = command("doctor", RINGCOLL_TRANSPORT="verbs")
    assert done.returncode == 1, done.stdout
    done = command("doctor", SLURM_PROCID="x", SLURM_NTASKS="2", SLURM_STEP_ID="1")
    assert done.returncode == 1 and "SLURM_PROCID" in done.stdout


def test_info():
    done = command("info")
    assert done.returncode == 0, done.stderr
    assert ringcoll.__version__ in done.stdout
    for word in ("allreduce", "ring", "RINGCOLL_TIMEOUT_S", "2(P-1)"):
        assert word in done.stdout
    transports = done.stdout.partition("schedules")[0]
    assert " yes " in transports and "True" not in transports
    found = json.loads(command("info", "--json").stdout)
    assert found["version"] == ringcoll.__version__
    assert re.fullmatch(re.escape(ringcoll.__version__) + r"\+[0-9a-f]{12}", found["release"])
    assert {row["collective"] for row in found["schedules"]} >= {"allreduce", "alltoall", "barrier"}
    said = {row["name"]: (row["owner"], row["agreement"]) for row in found["knobs"]}
    assert said["RINGCOLL_SLOTS"] == ("coll", "agreed")
    assert said["RINGCOLL_TCP_STREAMS"] == ("tcp", "agreed")
    assert said["RINGCOLL_TOPOLOGY"] == ("topology", "rank 0's")
    assert said["RINGCOLL_DEVICES"] == ("verbs", "own")
    lines = [line.lstrip("│ ") for line in done.stdout.splitlines()]
    (row,) = (line for line in lines if line.startswith("RINGCOLL_DEVICES "))
    assert " verbs " in row and " own " in row


def test_a_file_of_costs_is_shown_and_checked(tmp_path):
    path = tmp_path / "costs.json"
    level = {"latency_us": 31, "rank_bytes_per_us": 117, "group_bytes_per_us": 234.5}
    path.write_text(json.dumps({"levels": {"network": level}}))
    done = command("info", "--json", RINGCOLL_COSTS=str(path))
    assert json.loads(done.stdout)["costs"] == {"file": str(path), "levels": {"network": level}}
    assert json.loads(command("info", "--json").stdout)["costs"] is None
    for name in ("info", "doctor"):
        done = command(name, RINGCOLL_COSTS=str(path))
        said = " ".join(done.stdout.split())
        assert done.returncode == 0 and "network 31 us" in said, done.stdout
    path.write_text(json.dumps({"levels": {"network": level | {"latency_us": -1}}}))
    done = command("doctor", RINGCOLL_COSTS=str(path))
    assert done.returncode == 1 and "levels.network.latency_us is -1" in " ".join(
        done.stdout.split()
    )
    done = command("info", RINGCOLL_COSTS=str(path))
    assert "levels.network.latency_us is -1" in " ".join(done.stdout.split())


def test_the_page_of_knobs_does_not_depend_on_the_environment():
    page = command("info", "--knobs-markdown").stdout
    assert command("info", "--knobs-markdown", RINGCOLL_LOG="error").stdout == page
    for knob in info.library_info()["knobs"]:
        assert f"| `{knob['name']}` | {knob['type']} |" in page
        assert f" | {knob['owner']} | {knob['agreement']} | {knob['help']} |" in page
    assert "`RINGCOLL_STORE`" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["doctor", "now"], "now"),
        (["compare", "--np", "0"], "not a positive number"),
        (["compare", "--sizes", "4,1X"], "'1X' is not a size"),
        (["compare", "--sizes", "2"], "at least 4"),
        (["info", "--json", "--knobs-markdown"], "not allowed"),
        (["horovod", "remove"], "remove"),
    ],
)
def test_bad_arguments(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_version():
    assert command("--version").stdout.strip() == f"ringcoll {ringcoll.__version__}"


def test_sizes():
    assert [compare.parse_size(text) for text in ("4", "1K", "64M", "1G")] == [
        4,
        1 << 10,
        64 << 20,
        1 << 30,
    ]


def test_compare_chooses_what_is_built():
    found = {
        "framework": "torch",
        "backends": {"ringcoll": True, "gloo": True, "mpi": False},
        "reasons": [],
    }
    assert compare.choose_backends(None, found) == ("torch", ["RINGCOLL", "GLOO"])
    assert compare.choose_backends(["GLOO"], found) == ("torch", ["GLOO"])
    with pytest.raises(Error, match="built without MPI"):
        compare.choose_backends(["MPI"], found)
    with pytest.raises(Error, match="no backend"):
        compare.choose_backends(["NCCL"], found)
    with pytest.raises(Error, match=r"No module.*ringcoll horovod install"):
        compare.choose_backends(None, {"framework": None, "backends": {}, "reasons": ["No module"]})


def test_compare_prints_ratios(capsys):
    times = {"RINGCOLL": {1024: 1e-5, 1 << 20: 1e-3}, "GLOO": {1024: 5e-5, 1 << 20: 2.5e-3}}
    info.wide_console().print(compare.make_table(times, 2, "torch"))
    text = capsys.readouterr().out
    for word in ("1 KiB", "1 MiB", "10.0 µs", "2.50 ms", "5.00", "2.50", "GLOO / RINGCOLL"):
        assert word in text


def test_compare_shows_why_a_job_failed(tmp_path):
    with pytest.raises(Error, match=r"(?s)status 3.*it broke"):
        compare._run_worker(
            [sys.executable, "-c", "print('it broke'); raise SystemExit(3)"], {}, 30
        )
    with pytest.raises(Error, match="had not ended after 1 s"):
        compare._run_worker([sys.executable, "-c", "import time; time.sleep(60)"], {}, 1)


def _completed(*words: str) -> set[str]:
    """What bash offers for the last of the words."""
    script = """
    shopt -s extglob
    eval "$(cat)"
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    function=$(complete -p ringcoll | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    $function ringcoll "${@: -1}" "${@: -2:1}"
    printf '%s\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", "ringcoll", *words],
        input=command("completion", "bash").stdout,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    )
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices():
    assert _completed("") >= {"doctor", "probe", "info", "compare", "simulate", "horovod"}
    assert _completed("do") == {"doctor"}
    assert "--json" in _completed("doctor", "--")
    assert _completed("horovod", "b") == {"build"}


def test_files_and_folders_are_completed():
    assert "etc" in {name.strip("/") for name in _completed("probe", "--output", "et")} or (
        "/etc" in _completed("horovod", "build", "--output", "/et")
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_shell_gets_a_script(shell: str):
    done = command("completion", shell)
    assert done.returncode == 0 and "ringcoll" in done.stdout and "doctor" in done.stdout


def test_a_shell_that_is_not_known_is_refused_with_those_that_are():
    done = command("completion", "fish")
    assert done.returncode == 2 and "bash" in done.stderr

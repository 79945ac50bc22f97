"""The builder around the edits: keys, what is missing, failures, the command line."""

import argparse
import dataclasses
import os
import sys

import pytest

from ringcoll.horovod import BuildError, Options, anchored, builder, cli
from ringcoll.horovod import machine as machine_module
from ringcoll.horovod.machine import Machine

MACHINE = Machine(torch="2.13.0", tensorflow="2.21.0", compiler="g++ 12", cmake="3.25", mpi="")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ringcoll" / "horovod"


@pytest.fixture
def this_machine(monkeypatch):
    monkeypatch.setattr(Machine, "probe", staticmethod(lambda **_: MACHINE))
    monkeypatch.setattr(Machine, "missing", lambda self: [])


class Silent(builder.Report):
    def __init__(self):
        super().__init__()
        self.lines = []

    def _line(self, text):
        self.lines.append(text)


def test_the_key_changes_with_what_goes_in(monkeypatch):
    key = builder.build_key(MACHINE)
    assert key == builder.build_key(MACHINE)
    for change in ({"torch": "2.12"}, {"mpi": "Open MPI 4"}, {"python": "3.9"}, {"compiler": ""}):
        assert builder.build_key(dataclasses.replace(MACHINE, **change)) != key, change
    monkeypatch.setattr(builder, "EDITS", builder.EDITS[1:])
    assert builder.build_key(MACHINE) != key


def test_the_key_changes_with_the_glue(monkeypatch, tmp_path):
    key = builder.build_key(MACHINE)
    copy = tmp_path / "glue"
    copy.mkdir()
    for file in builder.glue_dir().iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(builder, "glue_dir", lambda: copy)
    assert builder.build_key(MACHINE) == key
    (copy / "ringcoll_job.cc").write_text("// other\n")
    assert builder.build_key(MACHINE) != key


def test_what_is_missing_is_named_with_its_remedy(monkeypatch):
    bare = Machine(torch="", tensorflow="", compiler="", cmake="", mpi="")
    monkeypatch.setattr(machine_module.importlib.util, "find_spec", lambda name: None)
    lacks = "\n".join(bare.missing())
    for remedy in (
        "apt-get install g++",
        "cmake",
        "pip install torch",
        "cloudpickle psutil pyyaml",
    ):
        assert remedy in lacks
    monkeypatch.setattr(Machine, "probe", staticmethod(lambda **_: bare))
    with pytest.raises(BuildError, match="lacks"):
        builder.build()


def test_the_environment_of_the_build(monkeypatch):
    monkeypatch.setenv("HOROVOD_CPU_OPERATIONS", "RINGCOLL")
    environment = MACHINE.environment(3, "ringcoll.7")
    assert environment["HOROVOD_LOCAL_VERSION"] == "ringcoll.7"
    assert environment["MAKEFLAGS"] == "-j3"
    assert environment["HOROVOD_WITH_PYTORCH"] == environment["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert environment["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITH_MPI" not in environment
    assert "HOROVOD_CPU_OPERATIONS" not in environment


def test_a_wheel_in_the_cache_is_used(cache, this_machine):
    folder = cache / builder.build_key(MACHINE)
    folder.mkdir(parents=True)
    wheel = folder / "horovod-0.28.1+ringcoll.1-cp311-cp311-linux_x86_64.whl"
    wheel.touch()
    report = Silent()
    assert builder.build(report=report) == wheel
    assert len(report.lines) == 1 and "built already" in report.lines[0]


def test_a_failed_build_shows_the_errors_and_the_log(cache, this_machine, monkeypatch):
    monkeypatch.setattr(builder, "fetch_sdist", lambda folder: folder / "sdist")
    monkeypatch.setattr(builder, "prepare_tree", lambda sdist, folder, key: folder)
    script = "print('[ 50%] Building'); print('x.cc:1: error: no such thing'); exit(1)"
    real = builder.subprocess.Popen
    monkeypatch.setattr(
        builder.subprocess,
        "Popen",
        lambda command, **kw: real([sys.executable, "-c", script], **kw),
    )
    report = Silent()
    with pytest.raises(BuildError) as raised:
        builder.build(report=report)
    message = str(raised.value)
    assert "x.cc:1: error: no such thing" in message
    log = cache / builder.build_key(MACHINE) / "build.log"
    assert str(log) in message
    assert "[ 50%] Building" in log.read_text()
    assert any("50 %" in line for line in report.lines)
    assert not list(log.parent.glob("*.whl"))


def test_an_edit_that_does_not_fit_stops_the_command(monkeypatch, capsys):
    def refuse(options):
        raise anchored.EditError("some.cc: the pattern 'x' matches 0 times, not once")

    monkeypatch.setattr(cli, "build", refuse)
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["horovod", "build"])
    assert args.run(args) == 1
    assert "some.cc: the pattern 'x'" in capsys.readouterr().err


def test_the_options_of_the_command(monkeypatch, capsys, tmp_path):
    seen = []
    monkeypatch.setattr(cli, "build", lambda options: seen.append(options) or tmp_path / "w.whl")
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["horovod", "build", "--jobs", "3", "--without-mpi", "--force"])
    assert args.run(args) == 0
    assert seen == [Options(jobs=3, mpi=False, force=True)]
    assert capsys.readouterr().out.strip().endswith("w.whl")


def test_a_source_that_is_laid_in_already_stays_as_old_as_it_is(monkeypatch, tmp_path):
    ours, header = tmp_path / "ringcoll_a.cc", tmp_path / "ringcoll.h"
    ours.write_text("a")
    header.write_text("h")
    monkeypatch.setattr(builder, "glue_files", lambda: [ours, header])
    (tmp_path / "horovod" / "common").mkdir(parents=True)
    builder.lay_glue(tmp_path)
    laid = tmp_path / "horovod" / "common" / "ringcoll"
    os.utime(laid / header.name, (1, 1))
    ours.write_text("b")
    builder.lay_glue(tmp_path)
    assert (laid / ours.name).read_text() == "b"
    assert (laid / header.name).stat().st_mtime == 1

"""A wheel of Horovod for other machines: what it must not go by, and what is said that it needs."""

import argparse
import subprocess
import zipfile

import pytest

from ringcoll.horovod import BuildError, Options, builder, cli, portable
from ringcoll.horovod.machine import Machine
from ringcoll.horovod.portable import NotPortable

COMPILED = "/usr/bin/c++ -DHAVE_MPI=1 -mavx -mfma -O3 -o CMakeFiles/x.dir/y.cc.o -c /tmp/y.cc\n"


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a library that needs one of nobody's, by a path of its own."""
    here = tmp_path / "build"
    here.mkdir()
    (here / "other.c").write_text("int other(void) { return 1; }\n")
    (here / "it.c").write_text(
        '#include <stdio.h>\nint other(void);\nint it(void) { return puts("") + other(); }\n'
    )
    link = ["-shared", "-fPIC", "-o"]
    subprocess.run(["cc", *link, "libother.so.4", "other.c"], cwd=here, check=True)
    needs = ["-Wl,-rpath,/opt/other", "-L.", "-l:libother.so.4"]
    subprocess.run(["cc", *link, "it.so", "it.c", *needs], cwd=here, check=True)
    path = tmp_path / "horovod-0.28.1+x-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(here / "it.so", "horovod/torch/it.so")
    return path


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "build.log"
    path.write_text(COMPILED)
    return path


def test_what_it_needs_is_read_off_its_files_and_its_build(wheel, log):
    needs = portable.examine(wheel, log)
    assert needs.cpu == ("AVX", "FMA")
    assert needs.libraries == ("libother.so.4",) and needs.folders == ("/opt/other",)
    assert needs.glibc.startswith("2.")
    said = "\n".join(needs.lines("torch 2.13.0", "3.11"))
    for part in ("AVX, FMA", "CPython 3.11", "torch 2.13.0", "libother.so.4", "--without-mpi"):
        assert part in said


def test_the_newest_symbols_count():
    dump = (
        "    0x069691b4 0x00 05 GLIBC_2.9\n  0x09 0x00 04 GLIBC_2.34\n 0x0 0x00 03 GLIBCXX_3.4.30\n"
    )
    facts = [portable._dump(dump)]
    assert portable._newest("GLIBC", facts) == "2.34"
    assert portable._newest("GLIBCXX", facts) == "3.4.30"


@pytest.mark.parametrize("flag", ["-march=native", "-mcpu=native"])
def test_a_build_for_this_processor_alone_is_refused(wheel, log, flag):
    log.write_text(COMPILED + COMPILED.replace("-O3", flag))
    with pytest.raises(NotPortable, match=flag):
        portable.examine(wheel, log)
    with pytest.raises(NotPortable, match=rf"CXXFLAGS has {flag}.*unset it"):
        portable.check_environment({"CXXFLAGS": f"-O2 {flag}"})


def test_what_is_no_such_flag_is_not_taken_for_one(wheel, log):
    log.write_text(COMPILED.replace("-O3", "-mtune=native") + "gcc -march=native -E -v -\n")
    portable.examine(wheel, log)
    portable.check_environment({"CXXFLAGS": "-march=x86-64-v3", "OTHER": "-march=native"})


def test_for_other_machines_it_goes_by_none_of_this_one(monkeypatch):
    monkeypatch.setattr(portable.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(portable, "_cpu_features", lambda: {"sse2", "avx"})
    assert portable.arch_flags(everywhere=False) == "-mavx"
    assert portable.arch_flags(everywhere=True) == "-mf16c -mavx -mfma"
    monkeypatch.setattr(portable.platform, "machine", lambda: "aarch64")
    assert portable.arch_flags(everywhere=True) == ""


def test_the_compiler_is_told_and_does_not_ask_the_processor(monkeypatch):
    monkeypatch.delenv("HOROVOD_BUILD_ARCH_FLAGS", raising=False)
    machine = Machine.probe(everywhere=True)
    told = machine.environment(1, "x")["HOROVOD_BUILD_ARCH_FLAGS"]
    assert told.strip() == portable.arch_flags(everywhere=True) and told  # empty: Horovod would ask
    monkeypatch.setenv("HOROVOD_BUILD_ARCH_FLAGS", "-mavx2")
    assert Machine.probe().arch_flags == "-mavx2"


def test_its_name_has_what_it_is_built_for():
    machine = Machine(torch="2.13.0+cpu", tensorflow="2.21.0", compiler="", cmake="", mpi="")
    revision = builder.GLUE_REVISION
    assert builder.local_version(machine) == f"ringcoll.{revision}.torch2.13.0.tensorflow2.21.0"
    alone = Machine(torch="2.14.0.dev20261101", tensorflow="", compiler="", cmake="", mpi="")
    assert builder.local_version(alone) == f"ringcoll.{revision}.torch2.14.0.dev20261101"


def _run(*words):
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["horovod", *words])
    return arguments.run(arguments)


def test_a_folder_that_cannot_be_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(builder, "build", lambda options, report: pytest.fail("too late"))
    (tmp_path / "file").touch()
    assert _run("build", "--output", str(tmp_path / "file" / "dir")) == 1
    assert "--output" in capsys.readouterr().err
    assert _run("install", "--output", str(tmp_path)) == 2
    assert "--output works only with build" in capsys.readouterr().err


def test_flags_of_this_processor_are_refused_before_the_build(monkeypatch, tmp_path):
    monkeypatch.setattr(builder, "build", lambda options, report: pytest.fail("too late"))
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    with pytest.raises(BuildError, match=r"CXXFLAGS .* unset it"):
        builder.export(Options(), tmp_path)


def test_what_is_installed_here_can_be_put_elsewhere(capsys, tmp_path):
    """The build that these tests run with: it is in the cache, so nothing is compiled."""
    assert _run("build", "--output", str(tmp_path)) == 0
    (copy,) = tmp_path.glob("horovod-*.whl")
    said = capsys.readouterr().out
    assert str(copy) in said and "CPython" in said and "glibc" in said
    for name in ("torch", "tensorflow"):
        version = builder.local_version(Machine.probe())
        assert name in version and version in copy.name
    needs = portable.examine(
        copy, builder.cache_dir() / builder.build_key(Machine.probe(everywhere=True)) / "build.log"
    )
    assert not [place for place in needs.folders if "site-packages" in place], needs

"""ci/wheel without a root: what goes into a wheel, where it is tried, what is refused; and the
source package, from which wheels are built."""

import hashlib
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from support import linked, pythons, roots, wheels
from support.pythons import Cpython
from support.roots import Recipe, Root
from support.stages import Outcome, StageFailed

ROOT = Path(__file__).resolve().parents[2]


def _cpython(version, folder=Path("/nowhere"), includes=("",)):
    return Cpython(version, folder, includes, Root(folder), f"/usr/bin/python{version}")


@pytest.mark.parametrize(
    "other",
    [
        Recipe("build", "trixie", ("g++",)),
        Recipe("build", "bookworm", ("g++", "make")),
        Recipe("build", "bookworm", ("g++",), foreign="arm64"),
        Recipe("build", "bookworm", ("g++",), then="true"),
    ],
)
def test_a_root_of_another_recipe_is_another_root(other):
    recipe = Recipe("build", "bookworm", ("g++",))
    assert recipe.key == Recipe("build", "bookworm", ("g++",)).key != other.key


def test_without_an_archive_of_debian_the_remedy_is_said(monkeypatch):
    nothing = subprocess.CompletedProcess([], 0, stdout="")
    monkeypatch.setattr(roots.subprocess, "run", lambda *_, **__: nothing)
    with pytest.raises(StageFailed, match="add one to its sources"):
        roots.mirror()


def test_who_is_not_root_is_told_so_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(roots.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(roots.setup, "packages", lambda *_: pytest.fail("too late"))
    with pytest.raises(StageFailed, match="sudo"):
        roots.root(Recipe("x", "bookworm"))


def test_a_root_that_was_not_finished_is_made_anew(monkeypatch, tmp_path):
    made = []

    def make(recipe, new):
        assert not new.folder.exists()
        new.folder.mkdir()
        made.append(new.folder)
        if len(made) == 1:
            raise StageFailed("the network is down")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(roots.os, "geteuid", lambda: 0)
    monkeypatch.setattr(roots.setup, "packages", lambda *_: None)
    monkeypatch.setattr(roots, "_make", make)
    recipe = Recipe("x", "bookworm")
    with pytest.raises(StageFailed, match="the network is down"):
        roots.root(recipe)
    whole = roots.root(recipe)
    assert whole.folder.is_dir() and not made[0].exists() and len(made) == 2
    assert roots.root(recipe) == whole and len(made) == 2


def test_a_command_runs_inside_with_what_it_is_shown_and_nothing_else(monkeypatch):
    seen = []
    monkeypatch.setattr(roots, "run", lambda command, log, **_: seen.append(command))
    Root(Path("/r")).run(["cmake", "a b"], "log", shown={Path("/out side"): "/in"}, env={"X": "1"})
    (command,) = seen
    script = command[-1]
    assert command[:5] == ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    assert "mount --bind '/out side' /r/in && exec chroot /r /usr/bin/env -i " in script
    assert script.endswith(" X=1 cmake 'a b'")


def test_a_version_that_is_not_here_is_refused_with_those_that_are(monkeypatch):
    have = {"bookworm": "3.11", "trixie": "3.13", "forky": "3.14"}
    made = []
    monkeypatch.setattr(
        pythons, "of_suite", lambda suite: made.append(suite) or _cpython(have[suite])
    )
    monkeypatch.setattr(pythons, "of_machine", lambda but: [_cpython("3.12")])
    assert [python.tag for python in pythons.available()] == ["cp311", "cp312", "cp313", "cp314"]
    made.clear()
    assert [python.version for python in pythons.available(["3.13"])] == ["3.13"]
    assert made == ["bookworm", "trixie"]
    with pytest.raises(StageFailed, match=r"no CPython 3\.9 here.*3\.11, 3\.12, 3\.13, 3\.14"):
        pythons.available(["3.9"])


def test_interpreters_of_this_machine_are_asked_what_they_are(monkeypatch):
    monkeypatch.setattr(pythons, "_programs", lambda: [sys.executable, "/bin/false"])
    monkeypatch.setattr(pythons, "bare_root", lambda suite: Root(Path("/bare")))
    mine = f"3.{sys.version_info.minor}"
    assert pythons.of_machine(but=[mine]) == []
    found = pythons.of_machine(but=[])
    if sys.base_prefix == "/usr":
        assert found == []  # a root has a /usr of its own
    else:
        assert [(python.version, python.shown) for python in found] == [
            (mine, Path(sys.base_prefix))
        ]


def test_extensions_are_named_and_compiled_for_their_python():
    python = _cpython("3.13", includes=("", "python3.13"))
    assert wheels.suffix(python, wheels.X86_64) == ".cpython-313-x86_64-linux-gnu.so"
    assert wheels.suffix(python, wheels.AARCH64) == ".cpython-313-aarch64-linux-gnu.so"
    assert wheels._includes(python, wheels.X86_64) == "/headers/cp313:/headers/cp313/python3.13"


def test_a_wheel_that_needs_libraries_of_this_machine_is_refused(monkeypatch, tmp_path):
    _repair(
        monkeypatch, "ringcoll-1-cp311-cp311-manylinux_2_34_x86_64.whl", "ringcoll.libs/libfmt.so"
    )
    with pytest.raises(StageFailed, match=r"needs libraries of this machine.*libfmt"):
        wheels.repaired(tmp_path / "work" / "x.whl", wheels.X86_64, tmp_path / "dist")


def test_a_wheel_for_newer_systems_alone_is_refused(monkeypatch, tmp_path):
    _repair(monkeypatch, "ringcoll-1-cp311-cp311-manylinux_2_36_x86_64.whl", "ringcoll/_core.so")
    with pytest.raises(StageFailed, match=r"newer C library than 2\.34.*auditwheel show"):
        wheels.repaired(tmp_path / "work" / "x.whl", wheels.X86_64, tmp_path / "dist")


def test_a_wheel_of_another_glibc_makes_room_for_the_new_one(monkeypatch, tmp_path):
    dist = tmp_path / "dist"
    dist.mkdir()
    stays = ["ringcoll-1-cp312-cp312-manylinux_2_36_x86_64.whl", "other-1-py3-none-any.whl"]
    stays.append("ringcoll-1-cp311-cp311-manylinux_2_36_aarch64.whl")
    for name in ("ringcoll-1-cp311-cp311-manylinux_2_36_x86_64.whl", *stays):
        (dist / name).touch()
    _repair(monkeypatch, "ringcoll-1-cp311-cp311-manylinux_2_34_x86_64.whl", "ringcoll/_core.so")
    made = wheels.repaired(tmp_path / "work" / "x.whl", wheels.X86_64, dist)
    assert sorted(path.name for path in dist.iterdir()) == sorted([made.name, *stays])


def _repair(monkeypatch, name, member):
    """Has auditwheel make a wheel of that name, with one file."""

    def pretend(command, log):
        with zipfile.ZipFile(command[3] / name, "w") as archive:
            archive.writestr(member, "x")
        return Outcome(0, 0, Path(log))

    monkeypatch.setattr(wheels, "_with_tools", pretend)


def test_a_wheel_that_has_grown_too_large_is_refused(tmp_path):
    wheel = tmp_path / "ringcoll-1.whl"
    wheel.write_bytes(b"")
    wheels.check_size(wheel)
    with wheel.open("wb") as file:
        file.truncate(wheels.MOST_BYTES + 1)
    with pytest.raises(StageFailed, match="more than 5"):
        wheels.check_size(wheel)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source package, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, folder], cwd=ROOT, check=True)
    (archive,) = folder.glob("ringcoll-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder)
    return folder / archive.name.removesuffix(".tar.gz")


def test_the_source_package_has_what_is_built_and_no_more(sdist):
    for name in ("csrc", "ringcoll", "compat/horovod"):
        for path in (ROOT / name).rglob("*"):
            if path.suffix in (".cc", ".h", ".py", ".pyi") and "__pycache__" not in path.parts:
                assert (sdist / path.relative_to(ROOT)).is_file(), path
    assert not [name for name in ("ci", "tests", "perf", ".ci") if (sdist / name).exists()]
    assert not list(sdist.rglob("*.so"))


def test_the_source_package_is_configured_by_itself(sdist, tmp_path):
    """That it can be compiled, too, is seen by ci/wheel, which makes all wheels of it."""
    command = ["cmake", "-S", sdist, "-B", tmp_path, "-G", "Ninja", "-DRINGCOLL_PYTHON=ON"]
    where = "import pybind11; print(pybind11.get_cmake_dir())"
    pybind11 = subprocess.check_output([sys.executable, "-c", where], text=True).strip()
    command += [f"-Dpybind11_DIR={pybind11}", f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_portable_refuses_a_library_that_is_shared_alone(sdist, tmp_path):
    shared = tmp_path / "libfmt.so"
    shared.touch()
    command = ["cmake", "-S", sdist, "-B", tmp_path / "b", "-G", "Ninja", "-DRINGCOLL_PORTABLE=ON"]
    done = subprocess.run(
        [*command, f"-DFMT_LIBRARY={shared}"], capture_output=True, text=True, check=False
    )
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and "is no static library" in said and "BUILD_SHARED_LIBS" in said


def test_the_changelog_has_a_section_for_this_version():
    text = (ROOT / "ringcoll" / "_version.py").read_text()
    version = re.search(r'__version__ = "([^"]+)"', text).group(1)
    heading = "Unreleased" if ".dev" in version else version
    assert re.search(rf"^## {re.escape(heading)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_all_that_users_install_is_in_the_extras_that_readme_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = (ROOT / "README.md").read_text()
    for name in re.findall(r"ringcoll\[([a-z,]+)\]", readme):
        for extra in name.split(","):
            assert extra in project["optional-dependencies"], extra
    assert "ringcoll[horovod]" in readme and "ringcoll[plots]" in readme


@pytest.fixture
def archives(monkeypatch, tmp_path):
    """``archives(sources)``: makes what a wheel has inside of those, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(linked.roots, "mirror", lambda: f"file://{tmp_path}/debian/")

    def make(sources):
        monkeypatch.setattr(linked, "SOURCES", sources)
        return linked.archives(f"{platform.machine()}-linux-gnu")

    return make


def _in_pool(folder, place, files):
    """Lays a source into an archive of Debian. Returns its hash."""
    path = folder / "debian" / "pool" / "main" / place
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            part = folder / "part"
            part.write_text(text)
            archive.add(part, f"a-1.0/{name}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


CMAKE = "cmake_minimum_required(VERSION 3.25)\nproject(a C)\nadd_library(a a.c)\n"


def test_what_a_wheel_has_inside_is_made_of_a_pinned_source_once(archives, tmp_path):
    place = "a/a/a_1.0.orig.tar.gz"
    digest = _in_pool(tmp_path, place, {"sub/CMakeLists.txt": CMAKE, "sub/a.c": "int a;"})
    folder = archives([linked.Source(place, digest, ("sub",))])
    assert [path.name for path in (folder / "lib").iterdir()] == ["liba.a"]
    (tmp_path / "debian" / "pool" / "main" / place).unlink()
    assert archives([linked.Source(place, digest, ("sub",))]) == folder


def test_a_source_that_is_another_one_is_refused(archives, tmp_path):
    place = "a/a/a_1.0.orig.tar.gz"
    _in_pool(tmp_path, place, {"CMakeLists.txt": CMAKE, "a.c": "int a;"})
    with pytest.raises(StageFailed, match="Hash Sum mismatch"):
        archives([linked.Source(place, "0" * 64, (".",))])

"""ci/support/glue.py: what of a Horovod that is built is built anew for an error in the sources
that are laid into it."""

import pytest
from support import glue


@pytest.fixture
def built(monkeypatch, tmp_path):
    """A folder with a Horovod that was built before, and the commands that are run."""
    files = {
        "tree/build/temp.linux/RelWithDebInfo/CMakeCache.txt": "",
        "tree/build/lib.linux/horovod/torch/mpi_lib_v2.so": "new",
        "tree/horovod/common/ringcoll_keras.py": "new",
        "tree/horovod/common/util.py": "new",
        "site/horovod/torch/mpi_lib_v2.so": "old",
        "site/horovod/common/ringcoll_keras.py": "old",
        "site/horovod/common/util.py": "old",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    commands = []
    monkeypatch.setattr(glue, "_run", lambda *command, **_: commands.append(command))
    return tmp_path, commands


def test_what_has_changed_is_compiled_and_laid_into_the_site(monkeypatch, built):
    folder, commands = built
    laid = []
    monkeypatch.setattr(glue.builder, "lay_glue", laid.append)
    glue._build_changed(folder, {}, "3")
    where = folder / "tree/build/temp.linux/RelWithDebInfo"
    assert laid == [folder / "tree"]
    assert commands == [("cmake", "--build", where, "-j", "3")]
    site = folder / "site/horovod"
    assert (site / "torch/mpi_lib_v2.so").read_text() == "new"
    assert (site / "common/ringcoll_keras.py").read_text() == "new"
    assert (site / "common/util.py").read_text() == "old"


@pytest.mark.parametrize("same", [True, False])
def test_all_is_built_where_something_else_has_changed(monkeypatch, tmp_path, same):
    machine = glue.Machine("", "", "g++", "cmake", "")
    monkeypatch.setattr(glue.Machine, "probe", lambda: machine)
    monkeypatch.setattr(glue.sys, "argv", ["glue.py", str(tmp_path), "2"])
    (tmp_path / "key").write_text(glue._key(machine) if same else "of another machine")
    done = []
    for name in ("_build_all", "_build_changed"):
        monkeypatch.setattr(glue, name, lambda *_, name=name: done.append(name))
    glue.main()
    assert done == (["_build_changed"] if same else ["_build_all", "_build_changed"])

"""ci/mutate's copy of the checkout, its notes, and which tests it runs for a file."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import trials
from support.mutants import Line, Mutant
from support.report import Report
from support.trials import Ledger, Record, Result


def _names(file):
    return [suite.name for suite in trials.suites_for(file)]


def test_the_nearest_layer_is_tested_first_and_those_above_it_follow():
    top = ["python", "processes", "cluster"]
    served = ["serving", "engine"]
    assert _names("csrc/engine/engine.cc") == ["engine", *top]
    assert _names("csrc/schedule/ring.cc") == ["schedule", "coll", "p2p", *served, *top]
    above_net = ["net", "transport", "connect", "store", "remote", "bootstrap"]
    above_net += ["topology", "life", "measure", "mesh", "comm", "coll", "p2p"]
    assert _names("csrc/net/socket.cc") == [*above_net, *served, *top]
    assert _names("csrc/p2p/post.cc") == ["p2p", *served, *top]
    assert {"shm", "verbs", "reduce"} <= set(_names("csrc/base/log.h"))
    assert _names("csrc/python/call.cc") == top
    assert _names("ringcoll/probe/tour.py") == top
    assert _names("ringcoll/horovod/edits.py") == ["builder", "python"]
    assert _names("compat/horovod/ringcoll_bell.cc") == ["horovod"]


def test_an_error_of_synchronisation_is_tried_with_models_and_the_thread_sanitizer_too():
    suites = trials.suites_for("csrc/p2p/post.cc", weaker=True)
    names = ["p2p", "orders", "tsan-p2p", "serving", "tsan-serving", "engine", "tsan-engine"]
    names += ["python", "processes", "cluster"]
    assert [suite.name for suite in suites] == names
    assert suites[1].targets == ()  # they compile what they need
    sanitized = suites[2]
    assert sanitized.targets == ("p2p_test",)
    assert sanitized.folder == trials.TREE / "build" / "tsan"
    command = trials._native(sanitized, Path("a.xml"), [], [], [], True)
    assert command[0] == str(sanitized.folder / "p2p_test")


def test_the_tests_of_a_module_go_first():
    tests = {
        "tests/python/test_a.py": "from ringcoll import doctor, info",
        "tests/python/test_b.py": "from ringcoll.probe.tour import rounds",
        "tests/python/test_c.py": "from ringcoll.probe import survey",
    }
    a, b, c = tests
    assert trials.nearest_first("ringcoll/info.py", tests) == [a]
    assert trials.nearest_first("ringcoll/probe/tour.py", tests) == [b, c]
    assert trials.nearest_first("ringcoll/probe/__init__.py", tests) == [b, c]
    assert trials.nearest_first("ringcoll/errors.py", tests) == []
    glue = dict.fromkeys(["tests/horovod/test_cycles.py", "tests/horovod/test_types.py"], "")
    assert trials.nearest_first("compat/horovod/ringcoll_types.cc", glue) == [
        "tests/horovod/test_types.py"
    ]
    assert trials.nearest_first("compat/horovod/ringcoll_life.cc", glue) == []


def test_a_name_in_the_xml_is_one_of_pytest():
    assert trials.node_of("tests.python.test_cli.test_it[a.b]") == (
        "tests/python/test_cli.py::test_it[a.b]"
    )
    assert trials.node_of("Ring.Works") is None


def test_one_test_is_run_alone_and_others_are_left_out(tmp_path):
    xml, native = tmp_path / "a.xml", trials.Suite("base")
    (found,) = [
        word for word in trials._native(native, xml, [], ["A.b"], [], True) if "filter" in word
    ]
    assert found == "--gtest_filter=A.b-Exhaustive/*"
    assert "--gtest_filter=*-Exhaustive/*:A.b" in trials._native(
        native, xml, [], [], ["A.b"], False
    )
    python = trials.Suite("python", ("tests/python",))
    name = "tests.python.test_cli.test_it"
    alone = trials._pytest(python, xml, python.paths, [name], [], True)
    assert alone[-2:] == ["-x", "tests/python/test_cli.py::test_it"]
    others = trials._pytest(python, xml, python.paths, [], [name], False)
    assert others[-2:] == ["--deselect=tests/python/test_cli.py::test_it", "tests/python"]


@pytest.fixture
def failing(monkeypatch):
    """``failing(fails)``: the test that notices an error, where `fails` says of a run of `only`
    some, or of all but some, which one fails; and what was run."""

    def call(fails):
        shop = object.__new__(trials.Workshop)
        shop._ledger = SimpleNamespace(without={"base": {"seconds": 1, "failing": ["Z.z"]}})
        runs = []

        def run(suite, limit_s, paths, *, only=(), without=(), once=False):
            runs.append((list(only), list(without)))
            name = fails(only, without)
            return Report(suite.name, passed=1, failed={name: "failed"} if name else {})

        monkeypatch.setattr(shop, "_run", run)
        return shop._failing(trials.Suite("base"), None), runs

    return call


def test_a_failure_that_comes_again_alone_has_noticed(failing):
    found, runs = failing(lambda only, without: "A.b")
    assert found == "A.b"
    assert runs == [([], ["Z.z"]), (["A.b"], [])]


def test_a_failure_that_does_not_come_again_is_left_out(failing):
    found, runs = failing(lambda only, without: None if only or "A.b" in without else "A.b")
    assert found is None
    assert runs == [([], ["Z.z"]), (["A.b"], []), ([], ["Z.z", "A.b"])]


def test_one_that_is_left_out_hides_no_other(failing):
    def fails(only, without):
        return ("A.b" not in without and not only and "A.b") or ("C.d" if only != ["A.b"] else None)

    assert failing(fails)[0] == "C.d"


def test_a_program_that_dies_has_noticed(failing):
    assert failing(lambda only, without: "mutate-base") == ("mutate-base", [([], ["Z.z"])])


def test_notes_are_kept_for_one_state_of_the_sources(tmp_path):
    path = tmp_path / "results.json"
    ledger = Ledger(path, "one")
    ledger.results["a1"] = Result(trials.NOTICED, "base: A.b", 1.5, {"file": "f"})
    ledger.without["base"] = {"seconds": 2, "failing": []}
    ledger.save()
    again = Ledger(path, "one")
    assert (again.results, again.without) == (ledger.results, ledger.without)
    other = Ledger(path, "two")
    assert (other.results, other.without) == ({}, {})


def test_what_was_found_out_is_kept_from_one_state_to_the_next(tmp_path):
    path = tmp_path / "tried.json"
    line = Line("csrc/a.cc", 3, "a < b", 0, "a < b")
    noticed, lived, other = (Mutant(line, f"a {sign} b") for sign in (">", "<=", "=="))
    first = Record(path, "one", again=False)
    first.add(noticed, Result(trials.NOTICED, "base: A.b", 1.5))
    first.add(lived, Result(trials.LIVED, "", 2))
    later = Record(path, "two", again=False)
    assert later.known(noticed) == Result(trials.NOTICED, "base: A.b", what={"state": "one"})
    assert later.known(lived).how == trials.LIVED
    assert later.known(other) is None
    # With a test that has come since.
    again = Record(path, "two", again=True)
    assert again.known(lived) is None
    again.add(lived, Result(trials.NOTICED, "base: New.test", 1))
    assert Record(path, "three", again=True).known(lived).what == {"state": "two"}
    assert again.known(noticed).how == trials.NOTICED


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q", root], check=True)
    monkeypatch.setattr(trials, "ROOT", root)
    monkeypatch.setattr(trials, "TREE", root / "build" / "tree")
    (root / ".gitignore").write_text("build/\n")
    (root / "a.cc").write_text("a\n")
    (root / "b.cc").write_text("b\n")
    return root


def test_the_copy_is_made_equal_to_the_checkout(checkout):
    trials._copy(trials._files())
    tree = trials.TREE
    assert sorted(path.name for path in tree.iterdir()) == [".gitignore", "a.cc", "b.cc"]
    built = tree / "build" / "a.o"
    built.parent.mkdir()
    built.write_text("object")
    as_old = (tree / "b.cc").stat().st_mtime_ns
    (tree / "a.cc").write_text("an error that was left\n")
    (checkout / "c.cc").write_text("c\n")
    (checkout / "build" / "tree" / "old.cc").write_text("gone from the checkout\n")
    trials._copy(trials._files())
    names = sorted(path.name for path in tree.rglob("*") if path.is_file())
    assert names == [".gitignore", "a.cc", "a.o", "b.cc", "c.cc"]
    assert (tree / "a.cc").read_text() == "a\n"
    assert (tree / "b.cc").stat().st_mtime_ns == as_old


def test_outside_of_git_it_says_so(checkout):
    (checkout / ".git").rename(checkout / "no-git")
    with pytest.raises(trials.StageFailed, match="copies what git tracks"):
        trials._files()


def test_a_compiler_makes_the_same_of_two_texts_or_something_else(tmp_path):
    def made(text):
        source, program = tmp_path / "a.c", tmp_path / "a"
        source.write_text(text)
        command = ["gcc", "-O2", "-g", "-Wl,--build-id", source, "-o", program]
        subprocess.run(command, check=True)
        return trials.digest_of_code([program])

    first = made("int main(int count, char** words) { return count + !words; }")
    assert made("int main(int number, char** texts) { return number + !texts; }") == first
    assert made("int main(int count, char** words) { return count - !words; }") != first


def test_what_is_left_out_of_the_tests_of_horovod_is_there():
    path, name = trials.node_of(trials._OF_THE_CACHE).split("::")
    assert f"def {name}(" in (trials.ROOT / path).read_text()

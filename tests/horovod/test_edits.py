"""The anchored edits: each fits the real source exactly once, and one that does not is refused."""

import re
import tarfile

import pytest

from ringcoll.horovod import anchored, builder
from ringcoll.horovod.anchored import Edit, EditError
from ringcoll.horovod.edits import EDITS

TEXT = "one\ntwo\nthree\n"
CPP = [edit for edit in EDITS if edit.file.endswith((".h", ".cc"))]
# Beginnings of what can stand in a file of our own: loops, types, lambdas, functions.
WHOLE = re.compile(
    r"^\s*(for|while|do|switch|namespace)\b|\b(struct|class)\b[^;]*\{|\[[\w&=, ]*\]\s*[({]"
    r"|^\w[^;{}#]*\)[^;{}]*\{",
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def originals(sdist):
    """The files that are edited, as they come; in one pass, as the archive is compressed."""
    names = {f"horovod-{builder.HOROVOD_VERSION}/{edit.file}": edit.file for edit in EDITS}
    with tarfile.open(sdist) as archive:
        return {
            names[member.name]: archive.extractfile(member).read().decode()
            for member in archive
            if member.name in names
        }


@pytest.fixture
def tree(originals, tmp_path):
    """A source tree that has just these files."""
    for name, text in originals.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.file}:{edit.pattern[:40]}")
def test_each_edit_fits_the_real_source_once(edit, originals):
    start, end = edit.span(originals[edit.file])
    assert 0 <= start <= end


@pytest.mark.parametrize("edit", CPP, ids=lambda edit: f"{edit.file}:{edit.pattern[:40]}")
def test_what_can_stand_in_files_of_our_own_does(edit):
    """In a string of Python no formatter sees it, and errors of the compiler name no line of it."""
    assert not WHOLE.search(edit.text), edit.text


def test_the_tree_is_prepared(sdist, tmp_path):
    tree = builder.prepare_tree(sdist, tmp_path, "0123abc")
    assert "horovod/common/ringcoll/*.cc" in (tree / "CMakeLists.txt").read_text()
    assert (tree / "horovod/common/ringcoll/ringcoll_controller.cc").is_file()
    assert (tree / "horovod/common/ringcoll/ringcoll.h").is_file()
    assert (tree / "horovod/common/ringcoll_backend.py").is_file()
    assert 'KEY = "0123abc"' in (tree / "horovod/common/ringcoll_build.py").read_text()
    for name in {edit.file for edit in EDITS if edit.file.endswith(".py")}:
        compile((tree / name).read_text(), name, "exec")


def test_a_source_that_has_changed_is_refused_and_nothing_is_written(tree):
    changed = tree / "horovod/common/utils/env_parser.cc"
    changed.write_text(changed.read_text().replace("LibType::CCL", "LibType::OTHER"))
    before = (tree / "CMakeLists.txt").read_text()
    with pytest.raises(EditError, match=r"horovod/common/utils/env_parser\.cc.*LibType::CCL"):
        anchored.apply(tree, EDITS)
    assert (tree / "CMakeLists.txt").read_text() == before


def test_a_second_application_is_refused(tree):
    anchored.apply(tree, EDITS)
    with pytest.raises(EditError, match="0 times"):
        anchored.apply(tree, EDITS)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(EditError, match=r"gone\.cc"):
        anchored.apply(tmp_path, [Edit("gone.cc", "two", "")])


@pytest.mark.parametrize(
    ("place", "result"),
    [
        ("before", "one\nXtwo\nthree\n"),
        ("after", "one\ntwoX\nthree\n"),
        ("instead", "one\nX\nthree\n"),
    ],
)
def test_places(place, result):
    assert anchored.apply_to_text(TEXT, [Edit("f", "^two$", "X", place)]) == result


def test_edits_do_not_depend_on_their_order():
    edits = [Edit("f", "three", "2"), Edit("f", "one", "1")]
    assert anchored.apply_to_text(TEXT, edits) == "one1\ntwo\nthree2\n"
    assert anchored.apply_to_text(TEXT, edits[::-1]) == "one1\ntwo\nthree2\n"


def test_replacements_are_literal():
    assert anchored.apply_to_text("ab", [Edit("f", "(a)", r"\1", "instead")]) == r"\1b"


@pytest.mark.parametrize("pattern", ["four", "^t"])
def test_no_match_and_two_matches_are_errors(pattern):
    with pytest.raises(EditError, match="not once"):
        anchored.apply_to_text(TEXT, [Edit("f", pattern, "")])


def test_overlapping_edits_are_an_error():
    edits = [Edit("f", "two\nthree", "", "instead"), Edit("f", "three", "", "instead")]
    with pytest.raises(EditError, match="overlaps"):
        anchored.apply_to_text(TEXT, edits)

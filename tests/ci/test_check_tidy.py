"""ci/check_tidy.py: which sources are new."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check_tidy
import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a commit for each of four sources, and one for their rules before."""

    def commit(*names: str) -> None:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        git("add", *names)
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", names[0])

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)

    git("init", "-q")
    commit(".clang-tidy")
    for name in ("a", "b", "c", "d"):
        commit(f"csrc/net/{name}.cc", f"csrc/net/{name}.h")
    return tmp_path


def sources(tree: Path) -> list[str]:
    return sorted(map(str, (tree / "csrc").rglob("*.cc")))


def names(found: list[str]) -> list[str]:
    return [Path(path).name for path in found]


def test_those_of_the_newest_commits(tree: Path) -> None:
    assert names(check_tidy.changed(sources(tree), 2, tree)) == ["c.cc", "d.cc"]


def test_those_that_are_not_committed_and_those_whose_header_is_not(tree: Path) -> None:
    (tree / "csrc/net/a.h").write_text("changed")
    (tree / "csrc/net/e.cc").write_text("new")
    assert names(check_tidy.changed(sources(tree), 1, tree)) == ["a.cc", "d.cc", "e.cc"]


def test_all_if_the_rules_have_changed(tree: Path) -> None:
    assert check_tidy.changed(sources(tree), 5, tree) == sources(tree)


def test_all_without_a_history(tree: Path) -> None:
    (tree / ".git").rename(tree / "git")
    assert check_tidy.changed(sources(tree), 1, tree) == sources(tree)

"""docs/contributing.md is true: what it names is there, and its examples work as they stand.

The examples are the sections in which a line names a file and where in it the block below goes.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import suites

from ringcoll import cli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "contributing.md"
EXAMPLES = ["A schedule", "A transport", "A front end"]
# Sections with tables of files and of the names that are in them.
WALKS = ["A schedule", "A collective", "A transport", "A front end"]
SOURCES_OF_EXAMPLES = ROOT / "docs" / "examples"  # which a command of the page copies to csrc/
# What is made, and no part of the tree.
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*cache*", "__pycache__")
_PLACE = re.compile(r"`([^`]+)`, (?:(a new file)|(after|in place of) (`+) ?(.+?) ?\4):\Z")


@dataclass(frozen=True)
class Edit:
    """A block, and where it goes: a new file, or after or in place of the line with `anchor`."""

    file: str
    how: str
    anchor: str
    text: str

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        if self.how == "a new file":
            assert not path.exists(), f"{self.file} is there already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        assert path.exists(), f"there is no {self.file}"
        lines = path.read_text().splitlines(keepends=True)
        found = [number for number, line in enumerate(lines) if self.anchor in line]
        assert len(found) == 1, f"{self.file}: {len(found)} lines have {self.anchor}"
        lines[found[0] + (self.how == "after") : found[0] + 1] = [self.text]
        path.write_text("".join(lines))


@dataclass
class Commands:
    script: str
    expected: list[str] = field(default_factory=list)


@dataclass
class Section:
    """A part of the page below a heading of the second level."""

    title: str
    text: str = ""  # without what is fenced
    shown: str = ""  # in fences without a language: commands that nobody runs here
    steps: list[Edit | Commands] = field(default_factory=list)

    @property
    def edits(self) -> list[Edit]:
        return [step for step in self.steps if isinstance(step, Edit)]

    @property
    def commands(self) -> list[Commands]:
        return [step for step in self.steps if isinstance(step, Commands)]

    def add(self, above: str, language: str, text: str) -> None:
        """Takes a fenced block; `above` is the paragraph before it, whose end names the place."""
        if not language:
            self.shown += text
        elif language == "sh":
            self.steps.append(Commands(text))
        elif language == "text":
            self.commands[-1].expected += text.splitlines()
        else:
            place = _PLACE.search(above)
            assert place, f"{self.title}: a block below {above!r}, which names no place"
            file, new, how, _, anchor = place.groups()
            self.steps.append(Edit(file, new or how, anchor or "", text))


def read(page: str) -> list[Section]:
    sections = [Section("")]
    block: list[str] | None = None
    language = above = last = ""
    for line in page.splitlines():
        if line.startswith("```") and block is None:
            block, language = [], line[3:]
        elif line == "```":
            assert block is not None
            sections[-1].add(above, language, "".join(f"{each}\n" for each in block))
            block = None
        elif block is not None:
            block.append(line)
        elif line.startswith("## "):
            sections.append(Section(line[3:]))
        else:
            sections[-1].text += line + "\n"
            above = f"{above} {line}" if line and last else line or above
        last = line
    assert block is None, "a block is not closed"
    return sections


SECTIONS = {section.title: section for section in read(PAGE.read_text())}
ALL_EDITS = [edit for section in SECTIONS.values() for edit in section.edits]
# Commands and code spans: where names of things are.
SHELL = "\n".join(
    [commands.script for section in SECTIONS.values() for commands in section.commands]
    + [section.shown for section in SECTIONS.values()]
)
SPANS = [
    span
    for section in SECTIONS.values()
    for _, span in re.findall(r"(`+) ?(.+?) ?\1(?!`)", section.text)
]


def files_of(tree: Path) -> list[str]:
    """Paths, relative to the tree, without what is built."""
    found = []
    for folder, folders, names in os.walk(tree):
        ignored = NOT_COPIED(folder, folders)
        folders[:] = [name for name in folders if name not in ignored]
        found += [str((Path(folder) / name).relative_to(tree)) for name in (*folders, *names)]
    return found


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples touch, with all edits made in the order of the page."""
    tree = tmp_path_factory.mktemp("edited")
    for edit in ALL_EDITS:
        path = tree / edit.file
        if not path.exists() and (ROOT / edit.file).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / edit.file, path)
        edit.apply(tree)
    shutil.copytree(SOURCES_OF_EXAMPLES, tree / "csrc", dirs_exist_ok=True)
    return tree


@pytest.fixture(scope="module")
def names(edited: Path) -> set[str]:
    """All files and folders of the tree, and those that examples add."""
    return {*files_of(ROOT), *files_of(edited)}


def rows_of(title: str, head: str) -> list[list[str]]:
    """The rows of a section's table whose first column has this head."""
    table = SECTIONS[title].text.partition(f"| {head} |")[2].splitlines()[2:]
    rows = []
    for line in table:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, f"{title} has no table of {head}"
    return rows


def words(text: str) -> str:
    """`text` with one space wherever there are some."""
    return " ".join(text.split())


def test_the_page_has_an_example_of_each():
    assert [title for title, section in SECTIONS.items() if section.steps] == EXAMPLES
    for title in EXAMPLES:
        assert SECTIONS[title].edits, title
        assert any(commands.expected for commands in SECTIONS[title].commands), title


def test_edits_fit_and_are_formatted(edited):
    tool = Path(sys.executable).parent / "clang-format"
    files = sorted({str(path) for path in edited.rglob("*") if path.suffix in (".h", ".cc")})
    command = [tool, f"--style=file:{ROOT / '.clang-format'}", "--dry-run", "-Werror", *files]
    done = subprocess.run(command, cwd=edited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SOURCES = sorted(
    {edit.file for edit in ALL_EDITS if edit.file.endswith(".cc")}
    | {
        f"csrc/{path.relative_to(SOURCES_OF_EXAMPLES)}"
        for path in SOURCES_OF_EXAMPLES.rglob("*.cc")
    }
)


@pytest.mark.parametrize("file", SOURCES)
def test_sources_that_examples_add_or_change_compile(edited, file):
    """That they work, and their tests pass, is found out where the examples are followed."""
    folders = [edited / "csrc", ROOT / "csrc", ROOT / "csrc" / "include"]
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    command += ["-Wno-missing-field-initializers", *(f"-I{folder}" for folder in folders)]
    done = subprocess.run(
        [*command, edited / file], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_edit_that_fits_no_line_or_several_is_refused(tmp_path):
    (tmp_path / "a").write_text("one\ntwo two\nthree two\n")
    with pytest.raises(AssertionError, match="0 lines have four"):
        Edit("a", "after", "four", "x\n").apply(tmp_path)
    with pytest.raises(AssertionError, match="2 lines have two"):
        Edit("a", "in place of", "two", "x\n").apply(tmp_path)
    Edit("a", "after", "one", "x\n").apply(tmp_path)
    Edit("a", "in place of", "three", "y\n").apply(tmp_path)
    assert (tmp_path / "a").read_text() == "one\nx\ntwo two\ny\n"


def test_a_block_without_a_place_is_refused():
    with pytest.raises(AssertionError, match="names no place"):
        read("## A\n\nsome text:\n\n```cpp\nint a;\n```\n")


def test_files_exist(names):
    top = "|".join(sorted({re.escape(Path(name).parts[0]) for name in files_of(ROOT)}))
    there = names | {f"{name}/" for name in names}
    found = re.findall(rf"(?<![\w/.-])((?:{top})(?:/[\w.*-]+)*/?)(?![\w/-])", SHELL)
    for span in SPANS:
        found += re.findall(rf"(?:\./)?((?:{top})(?:/[\w.*-]+)*/?)", span.split()[0])
    assert len(found) > 40
    missing = {name for name in found if not fnmatch.filter(there, name.rstrip("."))}
    assert not missing


def test_files_without_a_folder_exist(names):
    found = [
        span for span in SPANS if re.fullmatch(r"[\w.*-]+\.(?:h|cc|py|md|txt|toml|yaml)", span)
    ]
    assert len(found) > 4
    bare = {Path(name).name for name in names}
    assert [name for name in found if not fnmatch.filter(bare, name)] == []


@pytest.mark.parametrize("title", WALKS)
def test_names_of_a_walk_are_in_their_files(title):
    tables = SECTIONS[title].text.split("| file |")[1:]
    rows = [
        row for table in tables for row in re.findall(r"^\| `([^`|]+)` \| (.*) \|$", table, re.M)
    ]
    assert rows, f"{title} has no table of files"
    for file, said in rows:
        text = (ROOT / file).read_text()
        for name in re.findall(r"`([^`]+)`", said):
            if "/" not in name:
                assert name in text, f"{title}: {file} has no {name}"


def test_links_lead_somewhere():
    def headings(path: Path) -> set[str]:
        lines = re.findall(r"^#+ (.*)", path.read_text(), re.M)
        return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}

    pages = [PAGE, ROOT / "docs" / "design.md", ROOT / "docs" / "algorithms.md", ROOT / "README.md"]
    links = [
        (page, *link)
        for page in pages
        for link in re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", page.read_text())
        if page == PAGE or "contributing" in link[0]
    ]
    assert {page for page, *_ in links} == set(pages), "each of these names the page"
    for page, file, heading in links:
        target = page.parent / file
        assert target.exists(), f"{page.name}: {file}"
        assert not heading or heading in headings(target), f"{page.name}: {file}#{heading}"


def test_presets_exist():
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    there = {each["name"] for each in presets["configurePresets"] if not each.get("hidden")}
    assert {cells[0].strip("`") for cells in rows_of("C++", "preset")} == there
    assert set(re.findall(r"--preset (\w+)", SHELL)) <= there
    built = {each["name"] for each in presets["buildPresets"]}
    assert built == there - {"analysis"}  # which tells clang-tidy how sources are compiled


def test_targets_exist():
    layers = re.findall(r"^ringcoll_layer\((\w+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    programs = {
        f"{layer}_test" for layer in layers if [*(ROOT / "csrc" / layer).rglob("*_test.cc")]
    }
    assert set(re.findall(r"`(\w+_test)`", SECTIONS["C++"].text)) == programs
    wanted = {name for line in re.findall(r"--target (.+)", SHELL) for name in line.split()}
    wanted |= set(re.findall(r"build/\w+/(\w+_test)", SHELL))
    assert wanted <= programs | {"ringcoll"}


def _folders_of(short):
    """What a part says to run: layers of csrc/ or folders of tests/."""
    if short in suites.RING_LAYERS:
        return {layer for names in suites.RING_LAYERS[short] for layer in names}
    names = {name for group in suites.FOLDERS[short] for name in group}
    return {f"tests/{name}" for name in names if not name.endswith(".py")}


def test_parts_are_those_of_the_tests():
    rows = rows_of("All tests", "part")
    said = {cells[0].strip("`"): cells[2].replace("`", "") for cells in rows}
    assert said == {part.short: part.when.value for part in suites.PARTS}
    for short, what, _ in ((cells[0].strip("`"), *cells[1:]) for cells in rows):
        if short in {*suites.RING_LAYERS, *suites.FOLDERS} - {"checks"}:
            assert set(re.findall(r"`([^`]+)`", what)) == _folders_of(short)
    named = {
        name for line in re.findall(r"ci/test --only ([^#`\n]+)", SHELL) for name in line.split()
    }
    assert named and named <= set(said)


def test_checks_are_those_of_the_tests():
    said = [
        name for cells in rows_of("What the checks want", "check") for name in cells[0].split(", ")
    ]
    assert said == list(suites._checks())


def test_programs_know_their_options():
    uses = re.findall(r"(ci/\w+)((?: [^#\n]*)?)", "\n".join([SHELL, *SPANS]))
    wanted: dict[str, set[str]] = {}
    for program, arguments in uses:
        if (ROOT / program).is_file():
            options = re.findall(r"--[a-z-]+", arguments)
            plain = arguments.split()[:1] if program == "ci/setup" else []
            wanted.setdefault(program, set()).update(options, plain)
    assert wanted.keys() >= {"ci/setup", "ci/test", "ci/mutate"}
    for program, arguments in wanted.items():
        command = [sys.executable, ROOT / program, "--help"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert [each for each in arguments if each not in said] == [], program


def test_commands_of_ringcoll_exist(capsys):
    uses = {text for text in SPANS if text.startswith("ringcoll ")}
    uses |= {"ringcoll " + text for text in re.findall(r"/ringcoll ([^|\n]+)", SHELL)}
    assert len(uses) > 2
    for use in uses:
        _, command, *options = shlex.split(use)
        with pytest.raises(SystemExit) as ended:
            cli.make_parser().parse_args([command, "--help"])
        assert ended.value.code == 0, use
        said = capsys.readouterr().out
        assert [option for option in options if option not in said] == [], use


def test_knobs_exist(edited):
    known = set(re.findall(r"`(RINGCOLL_\w+)`", (ROOT / "docs" / "knobs.md").read_text()))
    for path in edited.rglob("*.cc"):
        known |= set(re.findall(r'"(RINGCOLL_\w+)"', path.read_text()))
    known |= set(re.findall(r"option\((RINGCOLL_\w+)", (ROOT / "CMakeLists.txt").read_text()))
    for path in (ROOT / "tests").rglob("*.py"):
        known |= set(re.findall(r'"(RINGCOLL_TEST_\w+)"', path.read_text()))
    blocks = [edit.text for edit in ALL_EDITS]
    named = set(re.findall(r"RINGCOLL_\w+", "\n".join([SHELL, *SPANS, *blocks])))
    assert "RINGCOLL_TRANSPORT" in named
    assert named - known <= {"RINGCOLL_ABI_VERSION", "RINGCOLL_"}


def test_tests_exist(edited):
    sources = [
        path.read_text()
        for folder in (ROOT / "csrc", edited / "csrc")
        for path in folder.rglob("*_test.cc")
    ]
    there = {found for text in sources for found in re.findall(r"TEST\w*\((\w+), (\w+)\)", text)}
    expected = [
        line for title in EXAMPLES for each in SECTIONS[title].commands for line in each.expected
    ]
    named = re.findall(r"\[ +OK \] (?:\w+/)?(\w+)\.(\w+)", "\n".join(expected))
    assert len(named) > 10
    assert [name for name in named if name not in there] == []


class Checkout:
    """A copy of the tree, with an environment of its own beside the packages of this one."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._followed: set[str] = set()
        shutil.copytree(ROOT, tree, ignore=NOT_COPIED, symlinks=True)
        venv.create(tree / ".venv", with_pip=False)
        (site,) = (tree / ".venv" / "lib").glob("python*/site-packages")
        (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        # ci/setup takes the pinned packages to be there, as they are.
        (tree / ".venv" / ".stamps").mkdir()
        shutil.copy(Path(sys.prefix) / ".stamps" / "packages", tree / ".venv" / ".stamps")

    def run(self, script: str) -> str:
        env = {name: value for name, value in os.environ.items() if "RINGCOLL" not in name}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.tree,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, "\n".join([script, *done.stdout.splitlines()[-60:]])
        return done.stdout

    def follow(self, title: str) -> Iterator[tuple[str, str]]:
        """Does what a section says, once; gives what was to be printed, and what was."""
        if title in self._followed:
            return
        self._followed.add(title)
        for step in SECTIONS[title].steps:
            if isinstance(step, Edit):
                step.apply(self.tree)
            else:
                said = words(self.run(step.script))
                yield from ((words(line), said) for line in step.expected)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("checkout") / "ringcoll")


# One after another in one copy: the examples have to get along, and most is compiled once.
@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_works(checkout, title):
    for earlier in EXAMPLES[: EXAMPLES.index(title) + 1]:
        for line, said in checkout.follow(earlier):
            assert line in said


@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
def test_what_the_examples_add_is_in_the_package(checkout):
    for title in EXAMPLES:
        list(checkout.follow(title))
    info = json.loads(checkout.run(".venv/bin/ringcoll info --json"))
    rows = [(row["collective"], row["name"]) for row in info["schedules"]]
    assert rows.count(("allreduce", "tree")) == 1
    assert [row["usable"] for row in info["transports"] if row["name"] == "plain"] == [True]
    (knob,) = (row for row in info["knobs"] if row["name"] == "RINGCOLL_PLAIN_DEPTH")
    assert (knob["type"], knob["default"]) == ("integer", "64")
    assert (knob["owner"], knob["agreement"]) == ("plain", "own")
    checkout.run(".venv/bin/python ci/check_layers.py && .venv/bin/python ci/check_sizes.py")

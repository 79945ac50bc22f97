"""Counts tests from the XML of GoogleTest and pytest, and compares skips with the expected."""

from __future__ import annotations

import fnmatch
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Report:
    """The results of one part of the tests. Names are "<suite>.<test>"."""

    part: str
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # name -> why
    skipped: dict[str, str] = field(default_factory=dict)  # name -> reason
    seconds: float = 0

    def add(self, other: Report) -> None:
        self.passed += other.passed
        self.failed |= other.failed
        self.skipped |= other.skipped
        self.seconds += other.seconds

    def line(self) -> str:
        counts = f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return f"{self.part}: {counts}, {self.seconds:.0f} s"


_SAID = re.compile(r"E( {3}|$)")  # pytest's mark for the message of an exception
_MOST_LINES = 40
_MOST_LETTERS = 240


def _first(text: str | None) -> str:
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[0] if lines else ""


def _cut(lines: list[str]) -> str:
    """Shortens a text for a log: the first lines, and more of the last ones."""
    if len(lines) > _MOST_LINES:
        few = _MOST_LINES // 4
        left_out = len(lines) - _MOST_LINES
        lines = [*lines[:few], f"[{left_out} lines]", *lines[few + left_out :]]
    return "\n".join(line[:_MOST_LETTERS] for line in lines)


def _why(trouble: ET.Element) -> str:
    """Returns the message of an exception. pytest cuts off the end of a long one, which has the
    cause, and gives none for an error of its own, but the element's text has all of it."""
    message, text = trouble.get("message") or "", (trouble.text or "").rstrip()
    if "full report in element text" not in message and message != "internal error":
        return message or _first(text) or "failed"
    lines = text.splitlines()
    said = [line.removeprefix("E").strip() for line in lines if _SAID.match(line)]
    return _cut([*said, lines[-1]] if said else lines)


def read_xml(path: Path, part: str) -> Report:
    """Reads JUnit XML of pytest or GoogleTest; a missing or broken file counts as one failure."""
    report = Report(part)
    try:
        cases = list(ET.parse(path).getroot().iter("testcase"))
    except (OSError, ET.ParseError) as error:
        report.failed[path.stem] = f"no result was written: {error}"
        return report
    for case in cases:
        if case.get("status") == "notrun":  # excluded by a filter or DISABLED_
            continue
        name = f"{case.get('classname')}.{case.get('name')}"
        trouble = [child for child in case if child.tag in ("failure", "error")]
        skip = case.find("skipped")
        if trouble:
            report.failed[name] = _why(trouble[0])
        elif skip is not None:
            report.skipped[name] = skip.get("message") or _first(skip.text) or "no reason given"
        else:
            report.passed += 1
    return report


_STARTED = re.compile(rb"^\[ RUN      \] (\S+)", re.MULTILINE)
_ENDED = re.compile(rb"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,| \(|$)", re.MULTILINE)


def read_gtest_log(path: Path, part: str, how_it_ended: str) -> Report:
    """Counts from the output of a GoogleTest program that died before it wrote its XML."""
    text = path.read_bytes() if path.exists() else b""
    report = Report(part)
    ended = {name.decode(): word for word, name in _ENDED.findall(text)}
    for name, word in ended.items():
        if word == b"OK":
            report.passed += 1
        elif word == b"FAILED":
            report.failed[name] = "failed"
        else:
            report.skipped[name] = "skipped"
    running = [name.decode() for name in _STARTED.findall(text) if name.decode() not in ended]
    report.failed[running[-1] if running else path.stem] = how_it_ended
    return report


def read_expected(path: Path) -> list[tuple[str, str]]:
    """Returns the rows (part, pattern of test names) of ci/expected-skips.txt; "#" begins a
    comment."""
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ValueError(f"{path.name}:{number}: want <part> <pattern>, got {line!r}")
        rows.append((words[0], words[1]))
    return rows


def unexpected_skips(
    report: Report, short: str, expected: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Returns the skips of the part that no expected row covers, with their reasons."""
    patterns = [pattern for part, pattern in expected if part in (short, "*")]
    return {
        name: reason
        for name, reason in report.skipped.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }

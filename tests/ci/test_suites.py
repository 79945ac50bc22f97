"""ci/support/suites.py: what runs beside the parts of ci/test."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from support import suites
from support.report import Report
from support.stages import StageFailed


def test_analyses_that_were_begun_early_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def check(part: str, checks: dict[str, list[str]], *, background: bool) -> Report:
        runs.append(checks)
        return Report(part, passed=len(checks))

    monkeypatch.setattr(suites, "_check", check)
    monkeypatch.setattr(suites, "run", lambda *args, **options: None)
    monkeypatch.setattr(suites, "must", lambda outcome: outcome)
    monkeypatch.setattr(suites, "_analyses", [])
    built: Future[None] = Future()
    suites.begin_analyses(fast=True, after=built)
    built.set_result(None)
    result = Report("analysis")
    suites.analysis(result, exhaustive=False)
    assert result.passed == 2
    [checks] = runs
    assert checks["clang-tidy"][-2:] == ["--commits", "50"]


def test_analyses_that_could_not_be_begun_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "_analyses", [])
    with pytest.raises(StageFailed, match="not begun"):
        suites.analysis(Report("analysis"), exhaustive=False)

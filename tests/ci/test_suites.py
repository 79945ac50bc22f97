"""ci/support/suites.py: what runs beside the parts of ci/test."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from support import suites
from support.report import Report


def test_analyses_that_were_begun_early_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def check(part: str, names: tuple[str, ...], *, background: bool) -> Report:
        runs.append(names)
        return Report(part, passed=len(names))

    monkeypatch.setattr(suites, "_check", check)
    monkeypatch.setattr(suites, "run", lambda *args, **options: None)
    monkeypatch.setattr(suites, "must", lambda outcome: outcome)
    monkeypatch.setattr(suites, "_analyses", [])
    built: Future[None] = Future()
    suites.begin_analyses(after=built)
    built.set_result(None)
    result = Report("analysis")
    suites.analysis(result, exhaustive=False)
    assert len(runs) == 1
    assert result.passed == len(suites._ANALYSES)

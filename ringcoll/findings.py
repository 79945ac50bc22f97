"""Findings: the results that ``ringcoll doctor`` and ``ringcoll probe`` print."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, FAILED = "ok", "note", "failed"


@dataclass(frozen=True)
class Finding:
    """One line of output. ``note``: worth knowing. ``failed``: ringcoll cannot run, or runs
    badly."""

    part: str
    status: str
    detail: str


def can_run(findings: list[Finding]) -> bool:
    return all(finding.status != FAILED for finding in findings)

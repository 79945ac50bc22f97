"""What ``ringcoll doctor`` and ``ringcoll probe`` say: findings."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, FAILED = "ok", "note", "failed"


@dataclass(frozen=True)
class Finding:
    """One line. ``note``: worth knowing; ``failed``: ringcoll cannot run, or not as it should."""

    part: str
    status: str
    detail: str


def can_run(findings: list[Finding]) -> bool:
    return all(finding.status != FAILED for finding in findings)

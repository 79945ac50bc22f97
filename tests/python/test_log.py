"""Messages of the Python side look like those of the core, unless the program has its own log."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_WARN = "from ringcoll.log import log; log.warning('%d tensors', 3); log.debug('a detail')"
_OWN_LOG = "import logging; logging.basicConfig(format='own %(levelname)s: %(message)s');"


def _run(program: str, **env: str) -> str:
    """What a program writes to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={k: v for k, v in os.environ.items() if k != "RINGCOLL_LOG"} | env,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("", "[ringcoll] warning: 3 tensors\n"),
        ("error", ""),
        ("debug", "[ringcoll] warning: 3 tensors\n[ringcoll] debug: a detail\n"),
    ],
)
def test_lines_are_like_those_of_the_core(level: str, lines: str) -> None:
    assert _run(_WARN, RINGCOLL_LOG=level) == lines


def test_a_program_with_a_log_of_its_own_has_all_records_there() -> None:
    assert _run(_OWN_LOG + _WARN) == "own WARNING: 3 tensors\n"

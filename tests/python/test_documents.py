"""The Python that README.md and pages of docs/ show, run by two ranks."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import ringcoll

_ROOT = Path(__file__).parents[2]
_BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("README.md", "docs/python.md", "docs/weights.md", "docs/parameters.md")
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (_ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    )
]


def test_the_pages_have_examples():
    assert len(_BLOCKS) == 8


@pytest.mark.parametrize("block", _BLOCKS)
def test_an_example_runs(run_ranks, block):
    def body(rank, size, store):
        ringcoll.init = functools.partial(ringcoll.init, rank, size, store)
        exec(block, {"__name__": "__main__"})

    run_ranks(2, body, connect=False)

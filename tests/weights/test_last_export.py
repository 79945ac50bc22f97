"""The last version becomes files even if the store is closed right after the commit."""

from __future__ import annotations

from pathlib import Path

import numpy

import ringcoll


def test_close_after_commit_leaves_the_files(tmp_path: Path) -> None:
    with ringcoll.serve("w", "key") as agent, ringcoll.Store("w", agent, path=tmp_path) as store:
        for version in range(1, 4):
            store.put("x", numpy.full(1000, float(version)))
            assert store.commit() == version
    assert (numpy.load(tmp_path / "latest" / "x.npy") == 3.0).all()

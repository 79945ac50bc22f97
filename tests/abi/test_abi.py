"""The promise of the C ABI: programs that were compiled against the header of an earlier revision
(``ringcoll-1.h``, kept as it was) work with this library as they are."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import ringcoll

HERE = Path(__file__).parent
INSTALLED = Path(ringcoll.__file__).parent
TODAY = INSTALLED / "include" / "ringcoll" / "ringcoll.h"
FROZEN = sorted(HERE.glob("ringcoll-*.h"))

Compile = Callable[..., Path]


@pytest.fixture
def compile_c(tmp_path: Path) -> Compile:
    """``compile_c("caller.c", header)``: the program, with the installed library behind it."""

    def build(source: str, header: Path, standard: str = "c99") -> Path:
        program = tmp_path / f"{Path(source).stem}-{header.stem}-{standard}"
        command = ["gcc", f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic"]
        command += [f'-DRINGCOLL_HEADER="{header}"', str(HERE / source), "-o", str(program)]
        command += [f"-L{INSTALLED}", f"-Wl,-rpath,{INSTALLED}", "-lringcoll"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return program

    return build


@pytest.mark.parametrize("standard", ["c99", "c11"])
@pytest.mark.parametrize("header", [*FROZEN, TODAY], ids=lambda header: header.stem)
def test_a_caller_of_each_revision_works(
    compile_c: Compile, tmp_path: Path, header: Path, standard: str
) -> None:
    program = compile_c("caller.c", header, standard)
    store = tmp_path / "store"
    store.mkdir()
    ranks = [
        subprocess.Popen(
            [program, str(rank), "2", f"file://{store}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    for rank, text in enumerate(said):
        assert f"rank {rank} of 2 is done" in text


def test_what_revision_1_has_stays_where_it_is(compile_c: Compile) -> None:
    def layout(header: Path) -> list[str]:
        program = compile_c("layout.c", header)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    first = layout(HERE / "ringcoll-1.h")
    assert "rc_call.postscale: 8 bytes at 64" in first
    assert layout(TODAY) == first

"""The header ringcoll/remote.h from C: an owner and a guest, both programs in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import ringcoll

INSTALLED = Path(ringcoll.__file__).parent


@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_programs_in_c_share_memory(tmp_path: Path, standard: str) -> None:
    program = tmp_path / "program"
    source = Path(__file__).parent / "jobs" / "program.c"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command = ["gcc", *flags, f"-I{INSTALLED}/include", str(source), "-o", str(program)]
    command += [f"-L{INSTALLED}", f"-Wl,-rpath,{INSTALLED}", "-lringcoll"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    with subprocess.Popen([program, "owner"], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout
            address, handle = owner.stdout.readline().split()
            subprocess.run([program, "guest", address, handle], check=True, timeout=60)
            assert owner.stdout.readline() == "notice 42, byte 9\n"
            assert owner.wait(30) == 0
        finally:
            owner.kill()

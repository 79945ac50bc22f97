"""Tries wheels as their users do: installs them where there is no compiler, and uses them."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from support import setup
from support.pythons import Cpython, check_bare
from support.stages import Outcome, StageFailed, must, run, say, stage
from support.wheels import (
    AARCH64,
    MOST_IMPORT_S,
    WORK,
    X86_64,
    Arch,
    build_root,
    fresh,
    tools,
)

_EXTRAS = "[horovod,plots]"
_NEWEST_GLIBC = 36  # 2.36, of Debian 12
_EMULATOR = "qemu-aarch64-static"


def _fetch(wheel: Path, folder: Path, python: Cpython, arch: Arch) -> None:
    """Downloads what the wheel and its extras need, as wheels for that CPython."""
    command: list[str | Path] = [tools() / "pip", "download", "--only-binary=:all:", "-d", folder]
    command += ["--python-version", python.version, "--implementation", "cp"]
    for abi in (python.tag, "abi3", "none"):
        command += ["--abi", abi]
    for minor in range(_NEWEST_GLIBC, 4, -1):
        command += ["--platform", f"manylinux_2_{minor}_{arch.name}"]
    for older in ("manylinux2014", "manylinux2010", "manylinux1"):
        command += ["--platform", f"{older}_{arch.name}"]
    must(run([*command, f"{wheel}{_EXTRAS}"], f"wheel-needs-{arch.name}-{python.tag}"))


def try_wheel(wheel: Path, python: Cpython, arch: Arch) -> None:
    """Installs the wheel and uses it. Raises StageFailed that says what did not work."""
    with stage(f"{wheel.name}: installed and used"):
        folder = fresh(WORK / "try" / f"{arch.name}-{python.tag}")
        _fetch(wheel, folder, python, arch)
        shutil.copy(setup.CI / "bare" / "use.py", folder)
        used = _try_bare(wheel, folder, python) if arch is X86_64 else _try_emulated(folder, python)
    measured = json.loads(used.log.read_text().splitlines()[-1])
    took, size = measured["import_s"], measured["installed_bytes"]
    say(f"  import ringcoll: {took * 1e3:.0f} ms; installed: {size / 1e6:.1f} MB")
    if arch is X86_64 and took > MOST_IMPORT_S:
        raise StageFailed(
            f"import ringcoll takes {took * 1e3:.0f} ms, more than {MOST_IMPORT_S * 1e3:g}: "
            "`python -X importtime -c 'import ringcoll'` shows what for"
        )


def _try_bare(wheel: Path, folder: Path, python: Cpython) -> Outcome:
    """Tries it in the root of the CPython; nothing more is downloaded."""
    check_bare(python.bare)
    shown = {folder: "/try"}
    if python.shown:
        shown[python.shown] = str(python.shown)
    script = f"""
    set -eux
    {python.program} -m venv /try/venv
    /try/venv/bin/pip install --no-index --find-links /try '/try/{wheel.name}{_EXTRAS}'
    /try/venv/bin/pip check
    /try/venv/bin/ringcoll --version
    /try/venv/bin/ringcoll completion bash | bash -n
    /try/venv/bin/python /try/use.py
    """
    log = f"try-{python.tag}"
    return must(python.bare.run(["bash", "-c", script], log, shown=shown, limit_s=900))


def _try_emulated(folder: Path, python: Cpython) -> Outcome:
    """Tries it with an emulator of the processor, in the root that built the wheel. pip cannot run
    there, since the kernel does not start programs of that architecture by itself."""
    packages = fresh(folder / "packages")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    env = {"PYTHONPATH": "/try/packages", "PYTHONHOME": "/usr", "PYTHONDONTWRITEBYTECODE": "1"}
    program = f"/opt/{AARCH64.name}/usr/bin/python{python.version}"
    command = [_EMULATOR, program, "/try/use.py", "--through", _EMULATOR]
    log = f"try-{AARCH64.name}-{python.tag}"
    return must(build_root().run(command, log, shown={folder: "/try"}, env=env, limit_s=1800))

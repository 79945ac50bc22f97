#!/usr/bin/env python3
"""Checks the direction of includes in csrc/, and which folder may include which outside header.

The rules are in docs/design.md, "Layers". A layer includes itself and the layers below it.
schedule/ and reduce/ include only base/, delta/ and rules/ also reduce/, and table/ both rules/ and
reduce/. python/ includes only the C header and the constants about collectives. A transport
includes no other transport. Layers that carry bytes know neither collectives nor element types,
though base/ has them. Each outside library belongs to one folder, but that of SIMD code to two. So
does every header of csrc/ that includes it, directly or not: verbs/table.h needs
<infiniband/verbs.h> and is private to verbs/.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# From the lowest row to the highest. Layers of one row do not include each other.
ORDER = [
    ["base"],
    ["shm", "net", "verbs", "reduce"],
    ["transport"],
    ["connect"],
    ["store", "remote"],
    ["bootstrap"],
    ["topology"],
    ["life", "measure"],
    ["mesh"],
    ["comm"],
    ["schedule"],
    ["coll", "p2p", "delta", "rules"],
    ["table"],
    ["serving"],
    ["engine"],
]
# Layers of functions without side effects -> what each includes besides base/.
PURE: dict[str, set[str]] = {
    "schedule": set(),
    "reduce": set(),
    "delta": {"reduce"},
    "rules": {"reduce"},
    "table": {"rules", "reduce"},
}
# Layers that carry bytes must not know collectives or element types. They include base/types.h for
# ranks, so their use of names is checked.
CARRIERS = {
    *("shm", "net", "verbs", "transport", "connect", "store", "remote", "bootstrap", "topology"),
    *("life",),
    *("measure", "mesh", "comm", "p2p"),
}
COLLECTIVES = "base/collectives.h"
_ELEMENTS = re.compile(
    r"\b(DataType|ReduceOp|Collective|rc_(?:dtype|op|collective|call)|RC_U?INT\d+|RC_B?FLOAT\d+)\b"
)
C_HEADER = "ringcoll/ringcoll.h"
# The installed headers. They include one another, and nothing else of ringcoll.
C_HEADERS = {C_HEADER, "ringcoll/remote.h", "ringcoll/tables.h"}
# It may also include COLLECTIVES, which has only constants, so it still links only with the C ABI.
FRONT = "python"

# Prefix of an outside header's path -> the only folders that may include it.
OWNERS: dict[str, tuple[str, ...]] = {
    "infiniband/": ("csrc/verbs",),
    "rdma/": ("csrc/verbs",),
    "pybind11/": ("csrc/python",),
    "Python.h": ("csrc/python",),
    "dlpack/": ("csrc/python",),
    "hwy/": ("csrc/reduce", "csrc/rules"),
    "immintrin.h": ("csrc/reduce",),
    "yaml.h": ("csrc/topology",),
    "sodium.h": ("csrc/connect",),
    "lz4.h": ("csrc/bootstrap",),
    "xxhash.h": ("csrc/delta",),
    "sodium/": ("csrc/connect",),
    "horovod/": ("compat/horovod",),
    "mpi.h": ("compat/horovod",),
}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
_SUFFIXES = {".h", ".cc", ".cpp", ".hpp", ".inl", ".c"}


def allowed_layers(layer: str) -> set[str]:
    """Returns the folders of csrc/ that `layer` may include."""
    if layer == FRONT:
        return {FRONT}
    if layer in PURE:
        return {layer, "base"} | PURE[layer]
    below: set[str] = set()
    for row in ORDER:
        if layer in row:
            return below | {layer}
        below |= set(row)
    return set()


@functools.cache
def includes(path: Path) -> list[tuple[int, str, str]]:
    """Returns line number, '<' or '"', and target of each include."""
    lines = enumerate(path.read_text(errors="replace").splitlines(), 1)
    found = ((number, _INCLUDE.match(line)) for number, line in lines)
    return [(number, match.group(1), match.group(2)) for number, match in found if match]


def _owners(target: str) -> tuple[str, ...]:
    """Returns the folders that the outside header `target` belongs to, if it belongs to any."""
    for prefix, owners in OWNERS.items():
        if target == prefix or (prefix.endswith("/") and target.startswith(prefix)):
            return owners
    return ()


def _only(owners: tuple[str, ...]) -> str:
    return "only " + " and ".join(f"{owner}/" for owner in owners)


def _brings(csrc: Path, target: str) -> set[str]:
    """Returns the owned outside headers that csrc/`target` includes, directly or not."""
    brought: set[str] = set()
    headers = [target] if (csrc / target).exists() else []
    for header in headers:
        for _, quote, further in includes(csrc / header):
            if _owners(further):
                brought.add(further)
            elif quote == '"' and further not in headers and (csrc / further).exists():
                headers.append(further)
    return brought


def _smuggled(csrc: Path, layer: str, target: str) -> str | None:
    """Returns why the includes of csrc/`target` forbid it to a file of `layer`, if they do."""
    for outside in sorted(_brings(csrc, target)):
        owners = _owners(outside)
        if f"csrc/{layer}" not in owners:
            return f'"{target}" includes <{outside}>, so that {_only(owners)} may include it'
    return None


def _brings_collectives(csrc: Path, target: str) -> bool:
    """True if csrc/`target`, of base/, includes COLLECTIVES. Headers of other layers are checked
    for themselves."""
    found = [target] if target.startswith("base/") else []
    for header in found:
        inner = [further for _, _, further in includes(csrc / header)]
        in_base = [one for one in inner if one.startswith("base/") and (csrc / one).exists()]
        found += [one for one in in_base if one not in found]
    return COLLECTIVES in found


def _elements(layer: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines where a layer that carries bytes names an element type or a collective."""
    if layer not in CARRIERS:
        return
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if found := _ELEMENTS.search(line.partition("//")[0]):
            yield number, f"{layer}/ carries bytes and does not know {found.group()}"


def _inside(csrc: Path, path: Path, target: str) -> str | None:
    """Returns why `path` in csrc/ may not include csrc/`target`, if it may not."""
    here = path.relative_to(csrc)
    layer, other = here.parts[0], Path(target).parts[0]
    if target in C_HEADERS:
        return None
    if not (csrc / target).exists():
        return f'"{target}" is no file of csrc/ (includes are relative to csrc/)'
    if other not in allowed_layers(layer) and (layer, target) != (FRONT, COLLECTIVES):
        return f"{layer}/ may not include {other}/"
    if layer in CARRIERS and _brings_collectives(csrc, target):
        return f'{layer}/ carries bytes: "{target}" brings {COLLECTIVES}'
    if layer == other == "transport" and len(here.parts) > 2 and len(Path(target).parts) > 2:
        mine, theirs = here.parts[1], Path(target).parts[1]
        if mine != theirs:
            return f"transport/{mine}/ may not include another transport, {theirs}/"
    return None


def _sources(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix in _SUFFIXES)


def _in_csrc(root: Path, path: Path) -> Iterator[str]:
    """Yields the violations of one file of csrc/."""
    csrc = root / "csrc"
    layer = path.relative_to(csrc).parts[0]
    if layer not in {layer for row in ORDER for layer in row} | {FRONT, "include"}:
        yield f"{path.relative_to(root)}: {layer}/ is no layer of ci/check_layers.py"
        return
    for number, quote, target in includes(path):
        owners = _owners(target)
        why = None
        if owners:
            is_owner = f"csrc/{layer}" in owners
            why = None if is_owner else f"{_only(owners)} may include <{target}>"
        elif quote == '"':
            alone = "the installed headers stand alone"
            why = _inside(csrc, path, target)
            if layer == "include":
                why = None if target in C_HEADERS else alone
            why = why or _smuggled(csrc, layer, target)
        if why:
            yield f"{path.relative_to(root)}:{number}: {why}"
    for number, why in _elements(layer, path):
        yield f"{path.relative_to(root)}:{number}: {why}"


def _in_compat(root: Path, path: Path) -> Iterator[str]:
    """Yields the violations of one file of compat/."""
    for number, _, target in includes(path):
        if target != C_HEADER and (root / "csrc" / target).exists():
            why = f"compat/ sees ringcoll by {C_HEADER} only, not {target}"
            yield f"{path.relative_to(root)}:{number}: {why}"


def violations(root: Path) -> list[str]:
    """Returns each violation in the tree, as "file:line: why"."""
    includes.cache_clear()
    found = [line for path in _sources(root / "csrc") for line in _in_csrc(root, path)]
    return found + [line for path in _sources(root / "compat") for line in _in_compat(root, path)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    print("\n".join(found) if found else "layers: every include points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

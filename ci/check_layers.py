#!/usr/bin/env python3
"""Checks the direction of includes in csrc/ and who may include what from outside.

Rules (docs/design.md, "Layers"): a layer includes itself and the layers below it; schedule/ and
reduce/ see only base/; python/ sees only the C header, and what that says of the collectives as
constants; a transport sees no other transport; layers that carry bytes know neither collectives nor
types of elements, though base/ has them. Each outside library belongs to one folder, and so does
every header of csrc/ that includes it, directly or by way of another: verbs/table.h, which needs
<infiniband/verbs.h>, is private to verbs/.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Lowest first; layers of one row do not see each other.
ORDER = [
    ["base"],
    ["shm", "net", "verbs"],
    ["transport"],
    ["bootstrap"],
    ["topology"],
    ["mesh"],
    ["comm"],
    ["schedule", "reduce"],
    ["coll", "p2p"],
    ["engine"],
]
PURE = {"schedule", "reduce"}
# Those that carry bytes: what is combined, and by which collective, is not their business. They
# include base/types.h for ranks, so names tell.
CARRIERS = {"shm", "net", "verbs", "transport", "bootstrap", "topology", "mesh", "comm", "p2p"}
COLLECTIVES = "base/collectives.h"
_ELEMENTS = re.compile(
    r"\b(DataType|ReduceOp|Collective|rc_(?:dtype|op|collective|call)|RC_U?INT\d+|RC_B?FLOAT\d+)\b"
)
C_HEADER = "ringcoll/ringcoll.h"
# It may include COLLECTIVES too, which are constants alone: the C ABI stays all that it is linked
# with.
FRONT = "python"

# What an outside header's path begins with -> the only folder that may include it.
OWNERS = {
    "infiniband/": "csrc/verbs",
    "rdma/": "csrc/verbs",
    "pybind11/": "csrc/python",
    "Python.h": "csrc/python",
    "dlpack/": "csrc/python",
    "hwy/": "csrc/reduce",
    "immintrin.h": "csrc/reduce",
    "yaml.h": "csrc/topology",
    "sodium.h": "csrc/bootstrap",
    "lz4.h": "csrc/bootstrap",
    "sodium/": "csrc/bootstrap",
    "horovod/": "compat/horovod",
    "mpi.h": "compat/horovod",
}

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
_SUFFIXES = {".h", ".cc", ".cpp", ".hpp", ".inl", ".c"}


def allowed_layers(layer: str) -> set[str]:
    """The folders of csrc/ that `layer` may include."""
    if layer == FRONT:
        return {FRONT}
    if layer in PURE:
        return {layer, "base"}
    below: set[str] = set()
    for row in ORDER:
        if layer in row:
            return below | {layer}
        below |= set(row)
    return set()


def includes(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, '<' or '"', and target of each include."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = _INCLUDE.match(line)
        if found:
            yield number, found.group(1), found.group(2)


def _owner(target: str) -> str | None:
    """The folder that the outside header `target` belongs to."""
    for prefix, owner in OWNERS.items():
        if target == prefix or (prefix.endswith("/") and target.startswith(prefix)):
            return owner
    return None


def _brings(csrc: Path, target: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """The outside headers that including csrc/`target` brings along, of those with an owner."""
    header = csrc / target
    if target in seen or not header.exists():
        return set()
    brought: set[str] = set()
    for _, quote, further in includes(header):
        if _owner(further):
            brought.add(further)
        elif quote == '"':
            brought |= _brings(csrc, further, seen | {target})
    return brought


def _smuggled(csrc: Path, layer: str, target: str) -> str | None:
    """Why a file of `layer` may not include csrc/`target` for what that includes in turn."""
    for outside in sorted(_brings(csrc, target)):
        owner = _owner(outside)
        if owner != f"csrc/{layer}":
            return f'"{target}" includes <{outside}>, so that only {owner}/ may include it'
    return None


def _brings_collectives(csrc: Path, target: str) -> bool:
    """Whether csrc/`target`, of base/, does. A header of another layer answers for itself."""
    found = [target] if target.startswith("base/") else []
    for header in found:
        inner = [further for _, _, further in includes(csrc / header)]
        in_base = [one for one in inner if one.startswith("base/") and (csrc / one).exists()]
        found += [one for one in in_base if one not in found]
    return COLLECTIVES in found


def _elements(layer: str, path: Path) -> Iterator[tuple[int, str]]:
    """Lines of code, with the name, in which a layer that carries bytes names what they are."""
    if layer not in CARRIERS:
        return
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if found := _ELEMENTS.search(line.partition("//")[0]):
            yield number, f"{layer}/ carries bytes and does not know {found.group()}"


def _inside(csrc: Path, path: Path, target: str) -> str | None:
    """Why `path` in csrc/ may not include csrc/`target`."""
    here = path.relative_to(csrc)
    layer, other = here.parts[0], Path(target).parts[0]
    if target == C_HEADER:
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
    """Violations of one file of csrc/."""
    csrc = root / "csrc"
    layer = path.relative_to(csrc).parts[0]
    if layer not in {layer for row in ORDER for layer in row} | {FRONT, "include"}:
        yield f"{path.relative_to(root)}: {layer}/ is no layer of ci/check_layers.py"
        return
    for number, quote, target in includes(path):
        owner = _owner(target)
        why = None
        if owner:
            why = None if owner == f"csrc/{layer}" else f"only {owner}/ may include <{target}>"
        elif quote == '"':
            alone = "the installed header stands alone"
            why = alone if layer == "include" else _inside(csrc, path, target)
            why = why or _smuggled(csrc, layer, target)
        if why:
            yield f"{path.relative_to(root)}:{number}: {why}"
    for number, why in _elements(layer, path):
        yield f"{path.relative_to(root)}:{number}: {why}"


def _in_compat(root: Path, path: Path) -> Iterator[str]:
    """Violations of one file of compat/."""
    for number, _, target in includes(path):
        if target != C_HEADER and (root / "csrc" / target).exists():
            why = f"compat/ sees ringcoll by {C_HEADER} only, not {target}"
            yield f"{path.relative_to(root)}:{number}: {why}"


def violations(root: Path) -> list[str]:
    """Each violation in the tree, as "file:line: why"."""
    found = [line for path in _sources(root / "csrc") for line in _in_csrc(root, path)]
    return found + [line for path in _sources(root / "compat") for line in _in_compat(root, path)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    print("\n".join(found) if found else "layers: every include points down")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

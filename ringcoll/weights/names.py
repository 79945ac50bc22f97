"""Names of tensors as paths of files.

A "/" in a name makes a sub-directory: tensor "layer/0/w" is the file layer/0/w.npy of its version.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringcoll.errors import InvalidArgument

MODEL_FILE = "model.safetensors"
SUFFIX = ".npy"
# Linux' limit for one component of a path.
_COMPONENT_BYTES = 255
# Below Linux' limit for a path (4096), so that there is room for the directory in front.
_NAME_BYTES = 3072


def path_of(name: str) -> str:
    """The path of the .npy file of tensor ``name``, relative to the directory of its version.

    Raises InvalidArgument if the name can be no path inside that directory: it is empty or
    absolute, has an empty, "." or ".." component, has a NUL, is too long, or is no valid Unicode.
    The name "__metadata__" has another meaning in safetensors files.
    """
    if name == "__metadata__":
        raise _refuse(name, "safetensors files use it for their metadata")
    try:
        encoded = [part.encode() for part in name.split("/")]
    except UnicodeEncodeError:
        raise _refuse(name, "it is no valid Unicode") from None
    if name.startswith("/"):
        raise _refuse(name, "it starts with '/'")
    if any(part in (b"", b".", b"..") for part in encoded):
        raise _refuse(name, "a part of it is empty, '.' or '..'")
    if "\0" in name:
        raise _refuse(name, "it has a NUL")
    encoded[-1] += SUFFIX.encode()
    if max(map(len, encoded)) > _COMPONENT_BYTES or len(name.encode()) > _NAME_BYTES:
        raise _refuse(name, f"it is too long: {_COMPONENT_BYTES} bytes a part, with {SUFFIX!r}")
    return name + SUFFIX


def paths_of(names: Iterable[str]) -> dict[str, str]:
    """The path of each name. Also raises InvalidArgument if a path of one is a directory of another
    one, such as that of "a" and of "a.npy/b"."""
    paths = {name: path_of(name) for name in names}
    files = {MODEL_FILE, *paths.values()}
    for name, path in paths.items():
        _refuse_file_on_the_way(name, path, files)
    return paths


def possible_paths(names: Iterable[str]) -> tuple[dict[str, str], list[InvalidArgument]]:
    """Like paths_of(), without the names that can be no path; and what is wrong with those."""
    paths: dict[str, str] = {}
    errors: list[InvalidArgument] = []
    for name in names:
        try:
            paths[name] = path_of(name)
        except InvalidArgument as error:
            errors.append(error)
    files = {MODEL_FILE, *paths.values()}
    for name, path in list(paths.items()):
        try:
            _refuse_file_on_the_way(name, path, files)
        except InvalidArgument as error:
            errors.append(error)
            del paths[name]
    return paths, errors


def _refuse_file_on_the_way(name: str, path: str, files: set[str]) -> None:
    for folder in folders_of(path):
        if folder in files:
            raise _refuse(name, f"{folder!r} is a file already")


def folders_of(path: str) -> list[str]:
    """The directories on the way to ``path``, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _refuse(name: str, why: str) -> InvalidArgument:
    shown = name if len(name) <= 80 else name[:80] + "…"
    return InvalidArgument(f"tensor name {shown!r} cannot be a file: {why}")

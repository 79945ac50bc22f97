"""Makes MXNet's distributed stores ringcoll's, without an import in the script.

``RINGCOLL_MXNET=1`` has the file ``ringcoll_mxnet.pth`` call :func:`install` when Python starts.
The module is light, and imports neither NumPy nor MXNet: that waits until the script does it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

VARIABLE = "RINGCOLL_MXNET"
ROLE = "DMLC_ROLE"
SERVING = ("scheduler", "server")  # roles of processes that do not run the script

# Modules after which there is something to add: the class of stores, and what chooses a store.
_COMPLETED = ("mxnet.kvstore.kvstore", "mxnet.model")


def is_wanted() -> bool:
    """Whether scripts that ask for a store of MXNet's get one of ringcoll's."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def install() -> None:
    """From now on an import of MXNet also registers ringcoll's stores. In a server or a scheduler
    of MXNet's launchers it does not return, but becomes one of ringcoll's. Does nothing the second
    time."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of MXNet as other finders do, and has them completed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "mxnet" and os.environ.get(ROLE) in SERVING:
            _become_server()
        if fullname not in _COMPLETED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as ``inner`` does, then adds ringcoll's stores."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        from ringcoll.mxnet.registry import add

        add()


def _become_server() -> None:
    """MXNet's package runs its server within its own import. Another thread that imports anything
    of MXNet meanwhile, as a rule of the user's does, would wait for the end of that import for
    ever. So the process starts again, as a program of ringcoll's."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Without a role, that program may import MXNet as workers do.
    role = os.environ.pop(ROLE)
    # An optimizer of the script's own may be in a module beside it.
    os.environ["PYTHONPATH"] = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ringcoll.mxnet.serve", role])

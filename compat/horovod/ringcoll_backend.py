"""The Python side of Horovod's backend RINGCOLL; `ringcoll horovod build` puts it into the wheel.

It imports nothing of ringcoll: Horovod has to work where ringcoll is not installed.
"""

import ctypes
import importlib.metadata
import importlib.util
import os
from pathlib import Path

_OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_CONTROLLER = "HOROVOD_CONTROLLER"
_LIBRARY = "libringcoll.so"
_REFUSED = -7  # kProcessSetRefused of ringcoll_process_set.h


def _is_ringcoll(name):
    return os.environ.get(name, "").lower() == "ringcoll"


def _candidates():
    """The places where an installed ringcoll may have its library."""
    spec = importlib.util.find_spec("ringcoll")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        yield Path(folder) / _LIBRARY
    try:
        distribution = importlib.metadata.distribution("ringcoll")
        yield Path(str(distribution.locate_file("ringcoll"))) / _LIBRARY
    except importlib.metadata.PackageNotFoundError:
        return


def prepare():
    """Before hvd.init(): says where libringcoll.so is."""
    if not (_is_ringcoll(_OPERATIONS) or _is_ringcoll(_CONTROLLER)):
        return
    if not os.environ.get("RINGCOLL_LIBRARY"):
        found = [path for path in _candidates() if path.exists()]
        if not found:
            raise ImportError(
                f"{_OPERATIONS} or {_CONTROLLER} is RINGCOLL, but ringcoll is not installed for "
                "this Python: pip install ringcoll (or set RINGCOLL_LIBRARY to its libringcoll.so)"
            )
        os.environ["RINGCOLL_LIBRARY"] = str(found[0])


def raise_failure(library):
    """After hvd.init() has failed: raises ValueError with ringcoll's reason, if it was that."""
    library.horovod_ringcoll_error.restype = ctypes.c_char_p
    reason = (library.horovod_ringcoll_error() or b"").decode(errors="replace")
    if reason:
        raise ValueError(f"Horovod initialization failed. {reason}")


def raise_refusal(library, result, ranks):
    """After horovod_add_process_set(): raises RuntimeError if all ranks were refused the set."""
    if result == _REFUSED:
        library.horovod_ringcoll_refusal.restype = ctypes.c_char_p
        reason = (library.horovod_ringcoll_refusal() or b"").decode(errors="replace")
        raise RuntimeError(f"No rank has the process set {ranks}, as it was refused. {reason}")


def keep_choice(run_envs):
    """In horovodrun --gloo, which names GLOO for its workers: keeps what the user has named."""
    if _is_ringcoll(_OPERATIONS):
        run_envs[_OPERATIONS] = "ringcoll"
    if _is_ringcoll(_CONTROLLER) or (_is_ringcoll(_OPERATIONS) and not os.environ.get(_CONTROLLER)):
        run_envs[_CONTROLLER] = "ringcoll"

"""The names by which MXNet makes stores of ringcoll."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ringcoll import mxnet_hook

# Names of MXNet's own distributed stores. Where gradients of several devices are summed makes no
# difference here, so "device" says nothing.
REPLACED = (
    "dist",
    "dist_sync",
    "dist_async",
    "dist_sync_device",
    "dist_device_sync",
    "dist_async_device",
    "dist_device_async",
)
# Modules that make the store of a name. The others have the function from the first.
_CHOOSERS = ("mxnet.model", "mxnet.gluon.trainer", "mxnet.module.module")
OWN = "ringcoll"
OWN_ASYNC = "ringcoll_async"


def add() -> None:
    """Adds ringcoll's stores to what of MXNet is imported. Doing it again changes nothing.
    Precondition: ``mxnet.kvstore.kvstore`` is imported."""
    _register()
    for name in _CHOOSERS:
        if hasattr(sys.modules.get(name), "_create_kvstore"):
            _create_by_name(sys.modules[name])


def _register() -> None:
    """Registers the stores: those of their own names always, and in place of MXNet's if the
    variable says so."""
    from mxnet.kvstore.base import KVStoreBase

    from ringcoll.mxnet.store import Ringcoll

    names = KVStoreBase.kv_registry
    if names.get(OWN) is Ringcoll:
        return
    KVStoreBase.register(Ringcoll)  # under the name of the class, in lower case
    # Programs ask the type of a store whether it has "dist" and "_sync" in it.
    names[OWN_ASYNC] = functools.partial(Ringcoll, "dist_async_ringcoll")
    if mxnet_hook.is_wanted():
        for name in REPLACED:
            names[name] = functools.partial(Ringcoll, name, announce=True)


def _create_by_name(module: Any) -> None:
    """Has ``gluon.Trainer(..., kvstore="ringcoll")`` and ``Module.fit(kvstore="ringcoll")`` make
    the store. MXNet leaves a store away if there is one device and its name has no "dist": each
    worker would silently train alone. It makes no difference to other names."""
    before = module._create_kvstore
    if hasattr(before, "__wrapped__"):
        return

    @functools.wraps(before)
    def create(kvstore: Any, num_device: int, arg_params: Any) -> Any:
        if isinstance(kvstore, str) and kvstore.lower() in (OWN, OWN_ASYNC):
            kvstore = sys.modules["mxnet.kvstore"].create(kvstore)
        return before(kvstore, num_device, arg_params)

    module._create_kvstore = create

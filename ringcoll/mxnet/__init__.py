"""MXNet 1.9 over ringcoll: a key-value store of MXNet whose values live in tables of ringcoll.

>>> import mxnet as mx
>>> import ringcoll.mxnet  # registers the stores
>>> kv = mx.kv.create("ringcoll")  # or "ringcoll_async"
>>> kv.init(3, mx.nd.zeros((2, 2)))
>>> kv.push(3, mx.nd.ones((2, 2)))
>>> kv.pull(3, out=mx.nd.zeros((2, 2)))  # the sum over all workers

Scripts that ask for ``dist_sync``, ``dist_async`` and the like need no change and no import: with
``RINGCOLL_MXNET=1`` in the environment they get this store (:mod:`ringcoll.mxnet_hook`).

A process finds the others by MXNet's variables (``DMLC_ROLE`` and so on), or by those of a
launcher that :func:`ringcoll.init` knows. With MXNet's variables, import this module before
``mxnet``, or set ``RINGCOLL_MXNET=1``: MXNet's package starts its own server when it is imported.
"""

from ringcoll import mxnet_hook as _hook

_hook.install()  # before the import of MXNet, to which it adds the stores

import mxnet as _mxnet  # noqa: E402, F401

from ringcoll.mxnet.registry import add as _add  # noqa: E402

_add()  # to an MXNet that was imported before

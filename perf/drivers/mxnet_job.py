"""What the drivers over MXNet share: its roles. The word after the number of servers is the name of
the store: "dist_sync" is MXNet's own, "ringcoll" is ringcoll's.

The first server's process also starts the scheduler. Whoever serves does it in the main thread,
while MXNet is imported.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Any

import tables
from start import Start

# prctl(PR_SET_PDEATHSIG, SIGKILL): the scheduler must not outlive who has started it.
_SCHEDULE = "import ctypes; ctypes.CDLL(None).prctl(1, 9); "
_SCHEDULERS = {
    "dist_sync": "import mxnet",
    # Its package imports MXNet, which is to think that it is in a worker.
    "ringcoll": "del __import__('os').environ['DMLC_ROLE']; "
    "from ringcoll.mxnet import serve; serve.main('scheduler')",
}


def _set_variables(start: Start) -> None:
    """As MXNet's launchers do."""
    if start.rank == 0:
        start.publish("root", f"{start.address}:{start.free_port()}".encode())
    host, _, port = start.expect("root").decode().partition(":")
    os.environ |= {
        "DMLC_ROLE": "worker" if start.is_user else "server",
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
        "DMLC_NUM_SERVER": str(start.owners),
        "DMLC_NUM_WORKER": str(start.ranks - start.owners),
        "DMLC_NODE_HOST": start.address,
    }


def serve(start: Start) -> None:
    """The process of a server. Does not return."""
    _set_variables(start)
    store, scheduler = start.words[0], None
    if start.rank == 0:
        program = _SCHEDULE + _SCHEDULERS[store]
        scheduler = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", program],
            env={**os.environ, "DMLC_ROLE": "scheduler"},
        )

    def answer() -> None:
        try:
            tables.answer(start, tables.ServerRank())
        finally:
            if scheduler is not None:
                scheduler.kill()
            os._exit(0)  # the server has no other end

    threading.Thread(target=answer, daemon=True).start()
    if store == "ringcoll":
        del os.environ["DMLC_ROLE"]
        from ringcoll.mxnet import serve as server

        server.main("server")
    else:
        with contextlib.suppress(SystemExit):
            import mxnet  # noqa: F401
    os._exit(1)  # the harness has not said quit


def join(start: Start) -> Any:
    """The store of a worker."""
    _set_variables(start)
    if start.words[0] == "ringcoll":
        import ringcoll.mxnet  # noqa: F401
    import mxnet

    return mxnet.kv.create(start.words[0])

"""``python -m ringcoll.mxnet.serve ROLE``: a server or the scheduler of MXNet's launchers.

The hook of :mod:`ringcoll.mxnet_hook` starts it in place of MXNet's own.
"""

from __future__ import annotations

import sys

from ringcoll.errors import Error
from ringcoll.mxnet import launch
from ringcoll.mxnet.scheduler import Plan, Scheduler


def main(role: str) -> int:
    """Serves until the workers have ended."""
    try:
        plan = Plan.of(role=role)
        if plan.role == "scheduler":
            Scheduler(plan).run()
        else:
            launch.serve(plan)
    except Error as error:
        print(f"ringcoll: {role}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

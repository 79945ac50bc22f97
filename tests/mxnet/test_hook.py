"""Scripts that know nothing of ringcoll get its stores, if the variable says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launched import free_port

import ringcoll
from ringcoll.mxnet import registry

SITE = Path(ringcoll.__file__).parent.parent
REPORT = """
import json, sys
kinds = {name: getattr(make, "__module__", getattr(getattr(make, "func", None), "__module__", ""))
         for name, make in mx.kvstore.KVStoreBase.kv_registry.items()}
choosers = [mx.model, mx.gluon.trainer, mx.module.module]
chosen = {hasattr(each._create_kvstore, "__wrapped__") for each in choosers}
print(json.dumps([kinds, "ringcoll" in sys.modules, list(chosen)]))
"""


def run(script, **env):
    """Runs a script in a new process with these variables and none of a launcher's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DMLC_")}
    kept.pop("RINGCOLL_MXNET", None)
    # Files .pth of a folder are read only if Python takes it for one of packages.
    site = f"import site; site.addsitedir({str(SITE)!r})\n"
    return subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", site + script],
        env=kept | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def registered(script, **env):
    done = run(script + REPORT, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_package_brings_the_hook():
    text = (SITE / "ringcoll_mxnet.pth").read_text()
    assert text == (SITE / "ringcoll" / "mxnet" / "ringcoll_mxnet.pth").read_text()
    assert text.startswith("import ") and text.count("\n") == 1


@pytest.mark.parametrize("env", [{}, {"RINGCOLL_MXNET": "0"}, {"RINGCOLL_MXNET": ""}])
def test_without_the_variable_nothing_of_ringcoll_is_loaded(env):
    kinds, loaded, chosen = registered("import mxnet as mx", **env)
    assert not loaded and chosen == [False]
    assert not set(kinds) & {*registry.REPLACED, registry.OWN}


def test_with_the_variable_the_names_of_mxnet_are_ours():
    kinds, _, chosen = registered("import mxnet as mx", RINGCOLL_MXNET="1")
    assert chosen == [True]
    ours = {name for name, module in kinds.items() if name != "teststore" and "horovod" not in name}
    assert ours == {*registry.REPLACED, registry.OWN, registry.OWN_ASYNC}


@pytest.mark.parametrize(
    "script", ["import mxnet as mx, ringcoll.mxnet", "import ringcoll.mxnet, mxnet as mx"]
)
def test_an_import_brings_the_store_and_leaves_the_names_of_mxnet(script):
    kinds, _, chosen = registered(script)
    assert {registry.OWN, registry.OWN_ASYNC} <= set(kinds)
    assert not set(kinds) & set(registry.REPLACED)
    assert chosen == [True]


def test_the_variable_alone_does_not_import_mxnet():
    script = "import sys; print('mxnet' in sys.modules, 'numpy' in sys.modules)"
    done = run(script, RINGCOLL_MXNET="1")
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("role", ["scheduler", "server"])
@pytest.mark.parametrize("script", ["import mxnet", "import ringcoll.mxnet"])
def test_the_import_is_where_a_server_serves(role, script):
    """Alone it serves nobody, and says what it waited for. It does not return to the script."""
    env = {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "RINGCOLL_TIMEOUT_S": "1",
    }
    done = run(f"{script}\nprint('a worker')", **env, RINGCOLL_MXNET="1")
    assert done.returncode == 1 and "a worker" not in done.stdout
    why = "0 of 1 workers" if role == "scheduler" else "the scheduler does not answer"
    assert f"ringcoll: {role}: " in done.stderr and why in done.stderr


def test_it_is_said_once_and_on_rank_0(workers, caplog):
    from ringcoll.mxnet import store
    from ringcoll.mxnet.store import Ringcoll

    store._announce.cache_clear()  # another test may have made one of this kind

    def program(kv):
        Ringcoll("dist_device_sync", announce=True, job=kv._job)

    workers(program, size=2)
    (line,) = [record.getMessage() for record in caplog.records if "RINGCOLL_MXNET" in record.msg]
    assert line == "MXNet's store 'dist_device_sync' is ringcoll's, since RINGCOLL_MXNET is set"

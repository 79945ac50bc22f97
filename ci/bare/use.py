"""Uses the ringcoll that is installed for this Python as somebody would who has just installed it.

Standard library and NumPy alone: this runs where nothing else is. Started by ci/wheel, in a root
without a compiler or under an emulator. The last line of its output is what it measured, as JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_RANK = """
import sys
import numpy, ringcoll
rank, store = int(sys.argv[1]), sys.argv[2]
with ringcoll.init(rank=rank, size=2, store=store, timeout=60) as world:
    for count in (1, 1000, 300_000):
        got = world.allreduce(numpy.full(count, rank + 1, numpy.float32))
        assert got.shape == (count,) and (got == 3).all(), got
    halves = world.allreduce(numpy.full(100, 0.5 + rank, numpy.float16), op="average")
    assert (halves == 1).all(), halves
    gathered = world.allgather(numpy.array([rank]))
    assert gathered.tolist() == [0, 1], gathered
print("rank", rank, "has the sum")
"""
# How an interpreter ends while a daemon thread is in a call is each CPython's own.
_DAEMON = """
import sys, threading, time
import numpy, ringcoll
rank, store, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
world = ringcoll.init(rank=rank, size=2, store=store, timeout=60)
begun = threading.Event()
def serve():
    x = numpy.zeros(1000)
    while True:
        begun.set()
        if what == "recv":
            world.recv(x, ringcoll.ANY_SOURCE)  # nobody sends
        elif what == "irecv":
            world.irecv(x, ringcoll.ANY_SOURCE).wait()
        else:
            world.allreduce(x)
for _ in range(2 if what == "recv" else 1):
    threading.Thread(target=serve, daemon=True).start()
begun.wait()
time.sleep(0.3)
"""
_IMPORT = (
    "import time; t = time.perf_counter(); import ringcoll; print(time.perf_counter() - t); "
    "import sys; print(ringcoll.__path__[0])"
)
_LIMIT_S = 300
_IMPORTS = 15  # the best of them: others of this machine disturb, and nothing hastens


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--through", default="", help="the emulator that Python is started by")
    return parser.parse_args()


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def run_two(python, script, *words):
    with tempfile.TemporaryDirectory() as store:
        ranks = [
            subprocess.Popen(
                [*python, "-c", script, str(rank), f"file://{store}", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said = [rank.communicate(timeout=_LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    print("".join(said))
    return [rank.returncode for rank in ranks]


def allreduce_of_two(python):
    if run_two(python, _RANK) != [0, 0]:
        sys.exit("an allreduce of two ranks failed")


def daemon_threads(python):
    for what in ("recv", "irecv", "allreduce"):
        codes = run_two(python, _DAEMON, what)
        if codes != [0, 0]:
            sys.exit(f"ranks with a daemon thread in {what} ended with {codes}")
        print(f"daemon threads in {what}: both ranks ended")


def main():
    wanted = arguments()
    python = [*wanted.through.split(), sys.executable]
    os.chdir(tempfile.gettempdir())  # no folder of sources is found here
    print(output_of([*python, "-m", "ringcoll", "doctor"]))
    allreduce_of_two(python)
    daemon_threads(python)
    imports = [output_of([*python, "-c", _IMPORT]).split() for _ in range(_IMPORTS)]
    files = [path for path in Path(imports[0][1]).rglob("*") if path.is_file()]
    own = [path for path in files if "__pycache__" not in path.parts]
    measured = {
        "import_s": min(float(seconds) for seconds, _ in imports),
        "installed_bytes": sum(path.stat().st_size for path in own),
    }
    print(json.dumps(measured))


main()

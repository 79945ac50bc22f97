"""What the library leaves alone of the threads that call it."""

from __future__ import annotations

from pathlib import Path

import ringcoll

# The functions by which a process binds a thread to CPUs.
BINDING = (b"sched_setaffinity", b"pthread_setaffinity_np", b"pthread_attr_setaffinity_np")
SEEING = b"sched_getaffinity"


def test_no_thread_is_bound():
    """The library cannot change an affinity: it names no function that does. The names of all
    functions that a shared object asks for are in it as text."""
    package = Path(ringcoll.__file__).parent
    objects = {path.name: path.read_bytes() for path in package.glob("*.so")}
    ours = [name for name in objects if name.startswith(("libringcoll", "_core"))]
    assert SEEING in objects["libringcoll.so"], "names are looked for in the wrong way"
    for name in ours:
        assert not [function for function in BINDING if function in objects[name]], name

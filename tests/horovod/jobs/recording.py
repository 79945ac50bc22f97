"""What a theme of the differential suite gives its operations, and what it got for it."""

import os
import pickle

import numpy as np


def from_launcher(what):
    """The job's SIZE or this process's RANK, before Horovod is initialized."""
    return int(os.environ.get(f"HOROVOD_{what}") or os.environ[f"OMPI_COMM_WORLD_{what}"])


def mine(sets):
    """Those of the named process sets that this process is a member of."""
    return {name: process_set for name, process_set in sets.items() if process_set.included()}


class Record:
    """Case -> array. An exception is recorded as its type and message, and as none of the results:
    two backends under which all cases raise would agree too."""

    def __init__(self):
        self.found = {}
        self.raised = set()

    def keep(self, case, value):
        """A copy of a result: an array, a tensor, a number, a text, or a list or tuple of them."""
        if isinstance(value, list | tuple):
            for i, one in enumerate(value):
                self.keep(f"{case} [{i}]", one)
            return
        assert case not in self.found, f"{case} is recorded twice"
        if hasattr(value, "detach"):
            value = value.detach()
        self.found[case] = np.array(value)

    def fail(self, case, error):
        """What was raised where a result might have been."""
        self.keep(case, f"{type(error).__name__}: {error}")
        self.raised.add(case)

    def attempt(self, case, function, *arguments, **options):
        """What the function returns, which may be nothing, or what it raises."""
        try:
            value = function(*arguments, **options)
        except Exception as error:
            self.fail(case, error)
            return
        self.keep(case, "None" if value is None else value)

    def save(self, path):
        path.write_bytes(pickle.dumps((self.found, self.raised)))


class Submitted:
    """Asynchronous operations of which the results are recorded later, all at once.

    Many at a time take few rounds of negotiation, and Horovod fuses what it can.
    """

    def __init__(self, record, synchronize):
        self._record = record
        self._synchronize = synchronize
        self._handles = []

    def add(self, case, function, *arguments, **options):
        """``function(..., name=case)`` returns a handle, or raises what is recorded at once."""
        try:
            self._handles.append((case, function(*arguments, name=case, **options)))
        except Exception as error:
            self._record.fail(case, error)

    def collect(self):
        for case, handle in self._handles:
            self._record.attempt(case, self._synchronize, handle)
        self._handles.clear()


def whole_numbers(shape, dtype, seed, rank):
    """From -2 to 2 (0 and 1 for bool and unsigned types), different on every rank.

    Their sums and products over a few ranks are exact in every type, float16 included.
    """
    dtype = np.dtype(dtype)
    low, high = (0, 2) if dtype.kind in "bu" else (-2, 3)
    return np.random.default_rng([seed, rank]).integers(low, high, shape).astype(dtype)


def fractions(shape, dtype, seed, rank):
    """From -1 to 1, different on every rank: sums of them depend on the order by rounding."""
    return np.random.default_rng([seed, rank]).uniform(-1, 1, shape).astype(dtype)

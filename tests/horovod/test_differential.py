"""Whatever Horovod does under GLOO it does under RINGCOLL, with the same results and errors.

Jobs record what each of their cases gave: an array, or an exception. A job runs under both, some
over other controllers or under MPI too, and the records are compared rank by rank and case by
case. What fails under GLOO alike is in them as well:

- SyncBatchNorm of torch works on GPUs alone, that of TensorFlow with Keras 2 alone;
- while a rank has joined, all operations but allreduce raise;
- an operation without a name is named by a count of the calls that this rank has made. Calls that
  not all ranks make, be it that some were refused, need names, or later ones never meet.
"""

import csv
import json
import pickle
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

# A test waits for four jobs at most.
LIMIT_S = 280
pytestmark = pytest.mark.timeout(4 * LIMIT_S + 40)

# Sums are made in an order of each backend's own. An average multiplies by 1/size, which is exact
# only for sizes that are powers of two.
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}
# Other cases are of whole numbers.
ROUNDED = re.compile("average|fraction|scaled|compress|gradient|undefined|training", re.IGNORECASE)

TORCH = ("torch_gradients", "torch_operations", "torch_training", "torch_joins", "torch_bad_input")
# With how many results there are at least.
TENSORFLOW = {"tensorflow_operations": 1400, "tensorflow_training": 75}
# How many cases of a theme raise on a rank, at most. More would be an error in the theme itself:
# all backends would say the same of it.
REFUSED = {
    "torch_training": 7,
    "torch_joins": 10,
    "torch_bad_input": 65,
    "tensorflow_training": 28,
    "process_sets": 14,
    "lives": 4,
}
# Horovod's autotuner comes to its end within the few steps of a test.
AUTOTUNE = {
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3",
}


@dataclass(frozen=True)
class Start:
    """How a job is started."""

    script: str
    themes: tuple[str, ...]
    size: int
    operations: str
    controller: str = ""
    launcher: str = "horovodrun --gloo"
    types: str = "some"  # or "all", of TensorFlow's operations

    def environment(self):
        named = {"HOROVOD_CPU_OPERATIONS": self.operations, "TYPES": self.types, **AUTOTUNE}
        if self.controller:
            named["HOROVOD_CONTROLLER"] = self.controller
        return named


@pytest.fixture(scope="module")
def records(folder_of):
    """records(start) -> the folder of the records of the job, which has ended well."""

    def run(start):
        return folder_of(
            f"{start.script}.py",
            *start.themes,
            limit_s=LIMIT_S,
            np=start.size,
            launcher=start.launcher,
            **start.environment(),
        )

    return run


def words(text):
    """Of a message without order: who comes first in "one rank ..., but another rank ..." is by
    chance. And without addresses of objects."""
    return sorted(re.findall(r"\w+", re.sub(r"\d{9,}", "", text)))


def agree(case, expected, actual):
    if expected.dtype.kind == "U" or actual.dtype.kind == "U":
        return words(str(expected)) == words(str(actual))
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if expected.tobytes() == actual.tobytes():
        return True
    if expected.dtype.kind != "f" or not ROUNDED.search(case):
        return False
    tolerance = TOLERANCE["float16" if "compress" in case.lower() else expected.dtype.name]
    return np.allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


class Record(NamedTuple):
    """What jobs/recording.py has saved: case -> array, or the text of what it raised."""

    found: dict
    raised: set

    def results(self):
        return self.found.keys() - self.raised


def load(folder, name, rank):
    return Record(*pickle.loads((folder / f"{name}.{rank}.pickle").read_bytes()))


def differences(expected_folder, actual_folder, name, size, at_least):
    """{(rank, case): both values}; at_least is how many results every rank must have."""
    different = {}
    for rank in range(size):
        expected, actual = (load(folder, name, rank) for folder in (expected_folder, actual_folder))
        assert expected.found.keys() == actual.found.keys()
        assert len(expected.results()) >= at_least, f"of rank {rank}"
        assert len(expected.raised) <= REFUSED.get(name, 0), f"rank {rank}: {expected.raised}"
        for case, value in expected.found.items():
            if not agree(f"{name} {case}", value, actual.found[case]):
                different[rank, case] = value, actual.found[case]
    return different


def wrong_by_chance(values):
    """Whether it is only numbers that two arrays differ in."""
    shapes = {(value.dtype, value.shape) for value in values}
    return len(shapes) == 1 and values[0].dtype.kind != "U"


def same_results(records, expected, actual, name, at_least):
    """Fails with what differs between the jobs of two Starts.

    A reducescatter of GLOO may be wrong by chance: with parts that halving does not give, its last
    messages are sent from a buffer that it is already writing to, or has freed. Where one differs
    in numbers, MPI says what is right, and the job that is not GLOO's must have it; of two jobs of
    GLOO only types and shapes are compared there.
    """
    size = expected.size
    different = differences(records(expected), records(actual), name, size, at_least)
    of_gloo = [start.operations == "GLOO" for start in (expected, actual)]
    for (rank, case), values in [*different.items()]:
        if "reducescatter" not in case or not any(of_gloo) or not wrong_by_chance(values):
            continue
        if not all(of_gloo):
            mpi = replace(expected, operations="MPI", controller="MPI", launcher="mpirun")
            right = load(records(mpi), name, rank).found[case]
            if not agree(f"{name} {case}", right, values[of_gloo.index(False)]):
                continue
        del different[rank, case]
    texts = [
        f"rank {rank}, {case}: {values[0]!r} is expected, it is {values[1]!r}"
        for (rank, case), values in different.items()
    ]
    assert not different, "\n".join(texts[:20])


def against_gloo(records, script, themes, size, name, at_least, types="some"):
    gloo = Start(script, themes, size, "GLOO", types=types)
    same_results(records, gloo, replace(gloo, operations="RINGCOLL"), name, at_least)


# Three ranks: parts of unequal length, and neither powers of two nor one peer alone.
SIZES = [
    pytest.param(2, marks=pytest.mark.exhaustive),
    3,
    pytest.param(4, marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", TORCH)
def test_torch(records, theme, size):
    against_gloo(records, "differential", TORCH, size, theme, at_least=40)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", TENSORFLOW)
def test_tensorflow(records, theme, size):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    against_gloo(records, "differential", (*TENSORFLOW,), size, theme, TENSORFLOW[theme])


# test_types.py runs every type once; here it is TensorFlow's graphs that take minutes.
@pytest.mark.exhaustive
def test_tensorflow_with_all_types(records):
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    for theme, at_least in TENSORFLOW.items():
        against_gloo(records, "differential", (theme,), 3, theme, at_least, types="all")


def test_there_are_thousands_of_cases(records):
    folder = records(Start("differential", TORCH, 3, "RINGCOLL"))
    assert len(load(folder, "torch_operations", 0).results()) > 2500


def test_all_ranks_get_the_same_bits(records):
    folder = records(Start("differential", TORCH, 3, "RINGCOLL"))
    first, *others = (load(folder, "torch_operations", rank) for rank in range(3))
    for other in others:
        shared = [case for case in first.results() & other.results() if "allreduce" in case]
        assert len(shared) > 500
        for case in shared:
            assert other.found[case].tobytes() == first.found[case].tobytes(), case


@pytest.mark.parametrize(
    ("operations", "controller", "launcher"),
    [
        # Operations and controller have no part in each other: of each pair the one that is ours
        # with one that is not. test_jobs.py runs the basics over all.
        ("GLOO", "RINGCOLL", "horovodrun --gloo"),
        ("RINGCOLL", "MPI", "mpirun"),
        pytest.param("RINGCOLL", "GLOO", "horovodrun --gloo", marks=pytest.mark.exhaustive),
        pytest.param("RINGCOLL", "", "mpirun", marks=pytest.mark.exhaustive),
        pytest.param("MPI", "MPI", "mpirun", marks=pytest.mark.exhaustive),
    ],
)
def test_all_controllers_and_mpi(records, operations, controller, launcher):
    """What MPI refuses (it has no float16 product, for one) is all that may differ."""
    themes = ("torch_operations", "torch_joins", "torch_bad_input")
    gloo = Start("differential", TORCH, 3, "GLOO")
    other = Start("differential", themes, 3, operations, controller, launcher)
    for theme in themes:
        same_results(records, gloo, other, theme, at_least=40)


@pytest.mark.parametrize("size", [pytest.param(3, marks=pytest.mark.exhaustive), 4])
def test_process_sets(records, size):
    against_gloo(records, "process_sets", (), size, "process_sets", at_least=500)


def test_settings(records):
    """Cache, cycle, fusion, affinity, completion, groups, timeline, between many inits.

    One life over GLOO says what is right.
    """
    gloo = records(Start("lives", ("timeline",), 2, "GLOO"))
    folder = records(Start("lives", ("settings",), 2, "RINGCOLL"))
    for rank in range(2):
        expected = load(gloo, "lives", rank)
        assert len(expected.results()) >= 100
        found = load(folder, "lives", rank).found
        labels = {case.split(": ")[0] for case in found if ": " in case}
        assert len(labels) >= 15
        for label in labels:
            for case, value in expected.found.items():
                same = case.replace("timeline: ", f"{label}: ")
                assert agree("average", value, found[same]), f"rank {rank}: {same}"


@pytest.mark.parametrize("operations", ["GLOO", "RINGCOLL"])
def test_the_timeline_is_a_trace(records, operations):
    life = "timeline" if operations == "GLOO" else "settings"
    folder = records(Start("lives", (life,), 2, operations))
    events = json.loads((folder / "timeline.json").read_text())
    names = {event.get("name") for event in events}
    for activity in ("ALLREDUCE", "ALLGATHER", "BCAST", "REDUCESCATTER"):
        assert f"{operations}_{activity}" in names
    assert {"NEGOTIATE_ALLREDUCE", "CYCLE_START"} <= names
    # Whatever begins ends, on each row of the picture. But of joins and barriers Horovod writes the
    # end alone.
    rows = {
        event["pid"]: event["args"].get("name")
        for event in events
        if event.get("name") == "process_name"
    }
    ends_only = re.compile("(join|barrier)[.]")
    begun = {}
    for event in events:
        if event.get("ph") in ("B", "E") and not ends_only.match(str(rows[event["pid"]])):
            row = begun.setdefault(event["pid"], 0) + (1 if event["ph"] == "B" else -1)
            assert row >= 0
            begun[event["pid"]] = row
    assert begun and not any(begun.values())


def test_the_stall_inspector_ends_the_job(records):
    """Under GLOO such a job hangs when there is no cache."""
    folder = records(Start("lives", ("stalls",), 2, "RINGCOLL"))
    for rank, who in enumerate(("alone", "others")):
        found = load(folder, "lives", rank).found
        for capacity in (0, 1024):
            assert "has been shut down" in str(found[f"{who} {capacity}"])
            assert "has been shut down" in str(found[f"late {capacity}"])
            assert "has been shut down" in str(found[f"group {capacity}"])
        assert found["after the stalls"].tolist() == [2.0, 2.0]


def test_who_waits_is_told_when_others_leave(records):
    """Horovod 0.28.1 hangs in one of a few lives."""
    folder = records(Start("lives", ("departures",), 2, "RINGCOLL"))
    found = load(folder, "lives", 0).found
    told = {case for case, value in found.items() if "has been shut down" in str(value)}
    assert told >= {f"{what} {life}" for what in ("waiting", "next") for life in range(30)}


def test_the_autotuner_tunes(records):
    against_gloo(records, "lives", ("autotune",), 2, "lives", at_least=1000)
    folder = records(Start("lives", ("autotune",), 2, "RINGCOLL"))
    with open(folder / "autotune.csv") as file:
        rows = list(csv.reader(file))
    assert len(rows) > 2

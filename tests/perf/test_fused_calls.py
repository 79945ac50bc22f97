"""Fused calls, counted in timelines as Horovod writes them: a row for each tensor."""

from harness.fused_calls import count_calls


def begin(tensor: int, name: str) -> dict[str, object]:
    return {"pid": tensor, "ph": "B", "name": name}


def end(tensor: int) -> dict[str, object]:
    return {"pid": tensor, "ph": "E"}


def test_tensors_that_begin_together_are_one_call() -> None:
    outer = [begin(1, "ALLREDUCE"), begin(2, "ALLREDUCE")]
    fused = [begin(1, "X_ALLREDUCE"), begin(2, "X_ALLREDUCE"), end(1), end(2)]
    assert count_calls([*outer, *fused, end(1), end(2)], "X_ALLREDUCE") == 1
    assert count_calls([*outer, *fused, *fused, end(1), end(2)], "X_ALLREDUCE") == 2


def test_tensors_one_after_another_are_calls_of_their_own() -> None:
    events = [{"ph": "M", "name": "process_name", "pid": 1}]
    for tensor in (1, 2, 3):
        events += [begin(tensor, "NEGOTIATE_ALLREDUCE"), end(tensor)]
        events += [begin(tensor, "X_ALLREDUCE"), end(tensor)]
    assert count_calls(events, "X_ALLREDUCE") == 3
    assert count_calls(events, "Y_ALLREDUCE") == 0

"""The ranks meet on a board, and rank 0 then leads them step by step.

Notes of an earlier run on the board do no harm. Each rank draws a random token. Rank 0 answers with
the tokens that it has seen and a name for this run. It repeats that until every rank has confirmed
its own token. All later keys begin with the name of the run.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from ringcoll.cluster.board import Board
from ringcoll.cluster.hosts import Report
from ringcoll.errors import Timeout

Step = dict[str, Any]  # a message of rank 0 to all ranks
Answer = dict[str, Any]  # a rank's answer to a step

_PAUSE_S = 0.01


class Lead:
    """Rank 0's side of the meeting. The constructor waits up to ``patience_s`` for the other ranks.
    ``reports`` are those of the ranks that have come, including rank 0."""

    def __init__(self, board: Board, size: int, own: Report, patience_s: float) -> None:
        self._board = board
        self.name = secrets.token_hex(8)
        self._steps = 0
        self._hellos: dict[int, dict[str, Any]] = {}
        here = self._meet(size, time.monotonic() + patience_s) if size > 1 else []
        self.reports = {0: own} | {rank: self._hellos[rank]["report"] for rank in here}

    def announce(self, message: Step) -> None:
        """Publishes the next step to all ranks."""
        self._steps += 1
        self._board.put(f"{self.name}.{self._steps}", message)

    def gather(self, ranks: list[int], patience_s: float) -> dict[int, Answer]:
        """Collects the answers of ``ranks`` to the last step, up to ``patience_s``. Ranks that do
        not answer, and rank 0, are left out."""
        key = f"{self.name}.{self._steps}"
        end = time.monotonic() + patience_s
        answers = {rank: self._board.wait(f"{key}.{rank}", end) for rank in ranks if rank != 0}
        return {rank: answer for rank, answer in answers.items() if answer is not None}

    def _meet(self, size: int, end: float) -> list[int]:
        """The other ranks that have come before ``end``."""
        answered: set[int] = set()
        others = set(range(1, size))
        while answered < others and time.monotonic() < end:
            changed = False
            for rank in sorted(others - answered):
                hello = self._board.get(f"hello.{rank}")
                if hello is not None and hello != self._hellos.get(rank):
                    self._hellos[rank] = hello
                    changed = True
            if changed:
                tokens = {str(rank): hello["token"] for rank, hello in self._hellos.items()}
                self._board.put("go", {"run": self.name, "tokens": tokens})
            for rank in set(self._hellos) - answered:
                if self._board.get(f"{self.name}.here.{rank}") is not None:
                    answered.add(rank)
            time.sleep(_PAUSE_S)
        return sorted(answered)


class Follow:
    """Any other rank's side of the meeting. The constructor meets rank 0. Raises Timeout if rank 0
    does not answer."""

    def __init__(self, board: Board, rank: int, own: Report, patience_s: float) -> None:
        self._board, self._rank = board, rank
        self._steps = 0
        token = secrets.token_hex(8)
        board.put(f"hello.{rank}", {"token": token, "report": own})
        end = time.monotonic() + patience_s
        while True:
            go = board.get("go")
            if go is not None and go["tokens"].get(str(rank)) == token:
                break
            if time.monotonic() > end:
                board.remove(f"hello.{rank}")
                raise Timeout(
                    f"rank 0 did not begin within {patience_s:.0f} s: has it started, and does it "
                    "run the same command?",
                    0,
                )
            time.sleep(_PAUSE_S)
        self.name = str(go["run"])
        board.put(f"{self.name}.here.{rank}", {})

    def next(self, patience_s: float) -> Step:
        """Waits for the next step of rank 0. Raises Timeout."""
        self._steps += 1
        step = self._board.wait(f"{self.name}.{self._steps}", time.monotonic() + patience_s)
        if step is None:
            raise Timeout(f"rank 0 has sent nothing for {patience_s:.0f} s: see its output", 0)
        return step

    def answer(self, message: Answer) -> None:
        """Answers the last step."""
        self._board.put(f"{self.name}.{self._steps}.{self._rank}", message)

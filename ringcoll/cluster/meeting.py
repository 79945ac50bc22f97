"""How the ranks come together on a board, and how rank 0 leads them through rounds.

What an earlier run has left on the board misleads nobody: each rank draws a token, rank 0 answers
with the tokens that it has seen and a name for this run, and looks again until every rank has said
that it found its own token there. All later keys begin with that name.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from ringcoll.cluster.board import Board
from ringcoll.cluster.hosts import Report
from ringcoll.errors import Timeout

Step = dict[str, Any]  # what rank 0 tells all
Answer = dict[str, Any]  # what a rank tells rank 0 of a step

_PAUSE_S = 0.01


class Lead:
    """Rank 0. Waits for the others, ``patience_s`` at most. ``reports`` are those of the ranks that
    have come, its own included."""

    def __init__(self, board: Board, size: int, own: Report, patience_s: float) -> None:
        self._board = board
        self.name = secrets.token_hex(8)
        self._steps = 0
        self._hellos: dict[int, dict[str, Any]] = {}
        here = self._meet(size, time.monotonic() + patience_s) if size > 1 else []
        self.reports = {0: own} | {rank: self._hellos[rank]["report"] for rank in here}

    def announce(self, message: Step) -> None:
        """The next step, for all to see."""
        self._steps += 1
        self._board.put(f"{self.name}.{self._steps}", message)

    def gather(self, ranks: list[int], patience_s: float) -> dict[int, Answer]:
        """What ``ranks`` answer to the last step. Those that do not, and rank 0, are left out."""
        key = f"{self.name}.{self._steps}"
        end = time.monotonic() + patience_s
        answers = {rank: self._board.wait(f"{key}.{rank}", end) for rank in ranks if rank != 0}
        return {rank: answer for rank, answer in answers.items() if answer is not None}

    def _meet(self, size: int, end: float) -> list[int]:
        """The ranks that have come before ``end``, but for this one."""
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
    """Any other rank. Raises Timeout if rank 0 does not answer."""

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
        """What rank 0 tells next."""
        self._steps += 1
        step = self._board.wait(f"{self.name}.{self._steps}", time.monotonic() + patience_s)
        if step is None:
            raise Timeout(f"rank 0 said nothing for {patience_s:.0f} s", 0)
        return step

    def answer(self, message: Answer) -> None:
        """To the last step."""
        self._board.put(f"{self.name}.{self._steps}.{self._rank}", message)

"""Runs one job: starts its ranks, has stopped ones go on, ends what hangs, finds what is left."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from support import hosts, stages
from support.soak import fake, stacks
from support.soak.generate import generate
from support.soak.rank import Verdict, be_rank, prepare
from support.soak.script import Pause, Plan, Script
from support.soak.stages import Stages

TRANSPORTS = ("shm", "tcp", "mixed", "namespaces", "verbs", "fake")


@dataclass
class Result:
    """`failure`: empty if the job did all it had to."""

    plan: Plan
    seconds: float
    failure: str = ""
    details: str = ""
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def command(self) -> str:
        """What runs this job again."""
        plan = self.plan
        return (
            f"ci/soak --seed {plan.seed} --jobs 1 --transport {plan.transport} --profile "
            f"{plan.profile} --size {plan.size} --steps {plan.steps} --laps {plan.laps}"
        )


def environment(story: Script, rank: int) -> dict[str, str]:
    """The deadline is longer than a job's patience, so that stacks of what hangs are seen."""
    transport = story.plan.transport
    env = {"RINGCOLL_LOG": "error", "RINGCOLL_TIMEOUT_S": "120", **story.knobs}
    if transport in ("shm", "tcp", "verbs"):
        env["RINGCOLL_TRANSPORT"] = transport
    if transport == "fake":
        env["RINGCOLL_TRANSPORT"] = "verbs"
    if transport == "mixed":
        env["RINGCOLL_HOSTID"] = f"host{story.hosts[rank]}"
    if transport not in ("namespaces", "verbs", "fake"):
        env["RINGCOLL_INTERFACE"] = "lo"
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        env[name] = "1"
    return env


class Job:
    """The ranks of a plan as processes. `patience_s`: without a step of any rank it hangs."""

    def __init__(self, plan: Plan, patience_s: float = 60) -> None:
        self._plan = plan
        self._script = generate(plan)
        self._patience_s = patience_s
        self._folder = Path(tempfile.mkdtemp(prefix="ringcoll-soak-"))
        self._store = self._folder / "store"
        self._store.mkdir()
        self._stages = Stages(self._folder / "stages", plan.size)
        self._pids: dict[int, int] = {}  # by rank; those that have not ended
        self._started: list[int] = []  # pids, which are those of their groups
        self._statuses: dict[int, int] = {}
        self._go_on: list[tuple[float, int]] = []
        self._hung: dict[int, int] = {}  # as _pids: those that were ended because they hung
        self._cluster: hosts.Cluster | None = None

    def run(self) -> Result:
        start = time.monotonic()
        try:
            self._start()
            hung = self._watch()
            left = self._left_behind()
            found = self._judge(hung, left)
        finally:
            self._end()
        found.seconds = time.monotonic() - start
        return found

    def _start(self) -> None:
        place: list[hosts.Host] = []
        if self._plan.transport == "namespaces":
            self._cluster = hosts.Cluster(max(self._script.hosts) + 1)
            place = [self._cluster.hosts[host] for host in self._script.hosts]
        if self._plan.transport == "fake":
            self._fork(0, None)
            return
        for rank in range(self._plan.size):
            host = place[rank] if place else None
            with host.birthplace() if host else nullcontext():
                self._fork(rank, host)

    def _fork(self, rank: int, host: hosts.Host | None) -> None:
        pid = os.fork()
        if pid:
            self._pids[rank] = pid
            self._started.append(pid)
            return
        code = 1
        try:
            os.setpgid(0, 0)
            stages.end_with_parent()
            if host:
                host.enter()
            prepare(environment(self._script, rank), self._folder / f"output.{rank}")
            code = self._be(rank)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _be(self, rank: int) -> int:
        if self._plan.transport == "fake":
            fake.exec_all(self._plan, self._folder)
        store = f"file://{self._store}"
        found = be_rank(
            self._script, rank, store, self._folder, lambda at: self._stages.put(rank, at)
        )
        found.write(self._folder / f"verdict.{rank}")
        return 1 if found.error else 0

    def _watch(self) -> str:
        """Until all have ended. If they hang, ends them and says where they were."""
        last, since = self._stages.all(), time.monotonic()
        while self._pids:
            self._reap()
            now = time.monotonic()
            for at, pid in [each for each in self._go_on if each[0] <= now]:
                self._go_on.remove((at, pid))
                os.kill(pid, signal.SIGCONT)
            stages_now = self._stages.all()
            if stages_now != last or self._ended_badly():
                last, since = stages_now, now if stages_now != last else since
            if now > since + self._patience_s:
                return self._end_hung()
            time.sleep(0.004)
        return ""

    def _ended_badly(self) -> bool:
        return any(self._statuses.values())

    def _reap(self) -> None:
        for rank, pid in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if not found:
                continue
            if os.WIFSTOPPED(status):
                self._go_on.append((time.monotonic() + self._stop_s(rank), pid))
            else:
                self._statuses[rank] = status
                del self._pids[rank]

    def _stop_s(self, rank: int) -> float:
        """For how long: as the last stop says that the rank has come to."""
        at = self._stages.all()[rank] % max(1, len(self._script.steps))
        pauses = [step for step in self._script.steps[: at + 1] if isinstance(step, Pause)]
        stops = [step.for_ms for step in pauses if step.stopped and step.rank == rank]
        return stops[-1] / 1e3 if stops else 0.1

    def _end_hung(self) -> str:
        where = []
        for rank, pid in self._pids.items():
            os.kill(pid, signal.SIGCONT)
            where.append(f"--- rank {rank}, pid {pid}, step {self._step_of(rank)}")
            where.append(stacks.of(pid, self._folder / f"output.{rank}"))
        self._hung = dict(self._pids)
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        while self._pids:
            self._reap()
            time.sleep(0.01)
        return "\n".join([*where, ""])

    def _step_of(self, rank: int) -> str:
        at = self._stages.all()[rank]
        steps = self._script.steps
        if at < 0 or not steps:
            return "none yet"
        return f"{at} of {len(steps) * self._plan.laps}: {steps[at % len(steps)]}"

    def _left_behind(self) -> str:
        """Processes that the ranks have left, and files in the store's folder."""
        groups = set(self._started)
        end = time.monotonic() + 5
        while (alive := stacks.in_groups(groups)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        names = [stages.name_of(pid) or str(pid) for pid in alive]
        return f"processes left running: {names}" if names else ""

    def _judge(self, hung: str, left: str) -> Result:
        paths = {rank: self._folder / f"verdict.{rank}" for rank in range(self._plan.size)}
        verdicts = {
            rank: found for rank, path in paths.items() if (found := Verdict.read(path)) is not None
        }
        result = Result(self._plan, 0, verdicts=verdicts)
        failed = sorted((v.when, rank) for rank, v in verdicts.items() if v.error)
        causes = []
        if died := self._died_unasked(verdicts):
            causes.append(died)
        elif failed:
            found = verdicts[failed[0][1]]
            causes.append(f"rank {failed[0][1]}, {found.kind}: {found.error}")
        if hung:
            causes.append(f"hangs: no rank has come to another step for {self._patience_s:.0f} s")
        if left:
            causes.append(left)
        result.failure = "; and then ".join(causes)
        if result.failure:
            result.details = hung + self._details(failed)
        return result

    def _died_unasked(self, verdicts: dict[int, Verdict]) -> str:
        """Ranks that have neither said how they ended nor were to die."""
        if self._plan.transport == "fake":  # all ranks are threads of the one process
            verdicts = {} if any(self._statuses.values()) else verdicts
        return "; ".join(
            f"rank {rank} ended with status {status:#x}"
            for rank, status in self._statuses.items()
            if rank not in (*verdicts, *self._hung) and not self._was_to_die(rank, status)
        )

    def _details(self, failed: list[tuple[float, int]]) -> str:
        lines = []
        for when, rank in failed:
            verdict = Verdict.read(self._folder / f"verdict.{rank}")
            assert verdict
            after = when - failed[0][0]
            lines.append(f"rank {rank}, {after:.3f} s after the first, step {self._step_of(rank)}")
            lines.append(verdict.trace if not lines[1:] else f"    {verdict.kind}: {verdict.error}")
        return "\n".join(lines) + self._outputs()

    def _outputs(self) -> str:
        texts = []
        for path in sorted(self._folder.glob("output.*")):
            text = path.read_text(errors="replace").strip()
            if text:
                texts.append(f"\n--- {path.name}\n{text[-3000:]}")
        return "".join(texts)

    def _was_to_die(self, rank: int, status: int) -> bool:
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return rank in self._script.victims and killed

    def _end(self) -> None:
        stages.end(list(self._pids.values()))
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        self._stages.close()
        if self._cluster:
            self._cluster.close()
        shutil.rmtree(self._folder)

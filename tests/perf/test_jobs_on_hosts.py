"""A job spread over emulated hosts, by a driver that needs no library: its ranks only answer."""

import shutil
from pathlib import Path

import pytest
from harness import build
from harness.jobs import Job, JobError, Part, Spec, Way
from support.stages import has_ended

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler: cc is not on PATH")

# The sum is computed from the rank's number alone, for hosts have nothing in common here. A way
# scales it as WAY says, which the driver notices if it is not 1.
DRIVER = """
#include <stdlib.h>
#include "bench.h"
static struct peer peer;
static float factor = 1;
static void barrier(void* state) { (void)state; }
static void allreduce(void* state, const float* input, float* output, int64_t count) {
  float ranks = (float)(peer.size * (peer.size + 1) / 2) / (float)(peer.rank + 1);
  for (int64_t i = 0; i < count; i++) output[i] = *(float*)state * ranks * input[i];
}
static void* open_way(void* state) {
  (void)state;
  float* made = malloc(sizeof *made);
  *made = (float)atof(getenv("WAY"));
  return made;
}
int main(int argc, char** argv) {
  int size = (int)parse_number(argc == 3 ? argv[2] : "", 1, 64, "ranks");
  int rank = fork_ranks(size);
  peer = (struct peer){rank, size, 0, &factor, barrier, allreduce, 0, open_way};
  serve(&peer, argv[1]);
  join_ranks();
  return 0;
}
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("build")
    (folder / "driver.c").write_text(DRIVER)
    program = build.compile_c("cc", [folder / "driver.c"], folder / "driver", [])
    return [str(program), "{socket}", "{ranks}"]


@pytest.fixture
def spread(command, emulate) -> Spec:
    """Ranks 0 and 2 on h1, 1 on h2."""
    first, second = emulate(2).hosts
    return Spec("spread", command, parts=[Part([0, 2], first.command), Part([1], second.command)])


def test_ranks_on_hosts_answer_and_are_known_by_their_ids_here(
    spread: Spec, tmp_path: Path
) -> None:
    with Job(spread, 3, tmp_path) as job:
        assert [rank.rank for rank in job._ranks] == [0, 1, 2]
        pids = [rank.pid for rank in job._ranks]
        spaces = [Path(f"/proc/{pid}/ns/pid").readlink() for pid in pids]
        assert spaces[0] == spaces[2] != spaces[1] != Path("/proc/self/ns/pid").readlink()
        assert len(job.ask("run 4096 2 1", "times")) == 3
        before = job.processor_seconds()
        job.ask("run 1048576 1 400", "times")
        assert job.processor_seconds() > before
    assert all(has_ended(pid) for pid in pids)


def test_killed_job_leaves_no_rank_on_a_host(spread: Spec, tmp_path: Path) -> None:
    job = Job(spread, 3, tmp_path)
    pids = [rank.pid for rank in job._ranks]
    job.kill()
    assert all(has_ended(pid) for pid in pids)
    with pytest.raises(JobError, match="spread: it has ended"):
        job.ask("run 4 1 1", "times")


def test_each_way_is_verified_and_leaves_the_others_as_they_are(
    command: list[str], tmp_path: Path
) -> None:
    with Job(Spec("ways", command), 2, tmp_path) as job:
        first, right = Way(job, "-", {}), Way(job, "right", {"WAY": "1"})
        for way in (first, right, first, right):
            assert len(way.ask("run 4096 2 1", "times")) == 2
        wrong = Way(job, "wrong", {"WAY": "2"})
        with pytest.raises(JobError, match="element 0 is 6 instead of 3"):
            wrong.ask("run 4096 2 1", "times")


def test_averages_are_compared_as_such(command: list[str], tmp_path: Path) -> None:
    spec = Spec("average", command, environment={"PERF_AVERAGE": "1"})
    with Job(spec, 3, tmp_path) as job:
        assert len(job.ask("run 4096 2 1", "times")) == 3


def test_buffers_that_were_freed_come_back(command: list[str], tmp_path: Path) -> None:
    with Job(Spec("freed", command), 2, tmp_path) as job:
        for _ in range(2):
            assert len(job.ask("run 1048576 1 1", "times")) == 2
            [_, buffers] = job.ask("memory", "memory")[0]
            assert int(buffers) == 2048
            job.ask("free", "freed")
            assert job.ask("memory", "memory")[0][1] == "0"

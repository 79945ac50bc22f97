"""Reports of sanitizers, by whichever process, are failures of the part asan-python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import sanitizers

PROGRAM = """#include <cstdlib>
int main(int argc, char** argv) {
  if (argv[1][0] == 'o') return static_cast<char*>(malloc(4))[argc + 2];
  if (argv[1][0] == 'u') return (argc + 0x7fffffff) & 1;
  return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It reads beyond a block with "o", overflows an integer with "u", and else does nothing."""
    source = tmp_path_factory.mktemp("program") / "program.cc"
    source.write_text(PROGRAM)
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"]
    subprocess.run(["g++", *flags, source, "-o", source.with_suffix("")], check=True)
    return source.with_suffix("")


@pytest.mark.parametrize(
    ("what", "said"),
    [("overrun", "heap-buffer-overflow"), ("undefined", "ubsan_handle_add_overflow")],
)
def test_what_a_child_of_a_child_does_is_found(tmp_path, program, what, said):
    """Its output is dropped and its status not looked at."""
    env = os.environ | sanitizers.environment(tmp_path, tmp_path / "reports")
    code = f"import subprocess; subprocess.run([{str(program)!r}, {what!r}], stderr=-3)"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    (complaint,) = sanitizers.found(tmp_path / "reports").values()
    assert said in complaint
    assert "program.cc:" in complaint


def test_no_report_is_no_complaint(tmp_path, program):
    env = os.environ | sanitizers.environment(tmp_path, tmp_path / "reports")
    subprocess.run([program, "nothing"], env=env, check=True)
    assert sanitizers.found(tmp_path / "reports") == {}

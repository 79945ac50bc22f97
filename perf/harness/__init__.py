"""What the commands of perf/ share: jobs, peers, statistics, reports."""

import sys
from pathlib import Path

# Emulated hosts are shared with the tests: support.hosts.
sys.path.append(str(Path(__file__).resolve().parents[2] / "ci"))

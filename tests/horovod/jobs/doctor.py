"""``ringcoll doctor`` as a rank of a job."""

import sys

from ringcoll.cli import main

sys.exit(main(["doctor"]))

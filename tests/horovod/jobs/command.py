"""A command of ringcoll's as a rank of a job: command.py doctor --json"""

import sys

from ringcoll.cli import main

sys.exit(main(sys.argv[1:]))

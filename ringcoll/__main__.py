"""Runs the command ``ringcoll`` for ``python -m ringcoll``."""

import sys

from ringcoll.cli import main

sys.exit(main())

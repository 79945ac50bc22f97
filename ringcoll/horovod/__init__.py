"""Horovod with the backend RINGCOLL: fetches Horovod's source, adds ringcoll's sources, builds a
wheel and installs it."""

from .builder import BuildError, Options, build, install
from .installed import Installed, find_installed

__all__ = ["BuildError", "Installed", "Options", "build", "find_installed", "install"]

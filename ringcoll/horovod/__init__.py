"""Horovod with the backend RINGCOLL: fetches its source, adds ours, builds a wheel, installs it."""

from .builder import BuildError, Options, build, install
from .installed import Installed, find_installed

__all__ = ["BuildError", "Installed", "Options", "build", "find_installed", "install"]

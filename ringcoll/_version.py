"""The version of ringcoll; the one place where it stands."""

__version__ = "0.2.0.dev0"

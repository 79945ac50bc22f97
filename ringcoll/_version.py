"""The version of ringcoll. It is defined only here."""

__version__ = "0.2.0.dev0"

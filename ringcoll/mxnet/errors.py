"""What the stores raise when they refuse a call."""

from __future__ import annotations

from mxnet.base import MXNetError

from ringcoll import errors


class InvalidArgument(errors.InvalidArgument, MXNetError):  # type: ignore[misc]
    """ringcoll's error of this name, and also an error of MXNet's: programs catch that of MXNet's
    own stores."""

"""Manifests and leases of one client: a version is leased while it is read."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any

from ringcoll.errors import Error, Gone, InvalidArgument, PeerLost, Timeout
from ringcoll.weights.catalog import Json
from ringcoll.weights.manifest import Manifest
from ringcoll.weights.queries import LATEST
from ringcoll.weights.session import Session

_PAUSE_S = 0.02  # before an attempt to read is repeated
_MOST_MANIFESTS = 16

#: Reads with a manifest, the lease's name or None, and the seconds that are left. Returns a result,
#: and whether all that was read was verified.
Attempt = Callable[[Manifest, "str | None", float], "tuple[Any, bool]"]


class Lease:
    """While it is open, its version can be read. Closing it again does nothing."""

    def __init__(self, leases: Leases, name: str, manifest: Manifest) -> None:
        self._leases = leases
        self._name: str | None = name
        self.manifest = manifest
        self.version = manifest.number

    def close(self) -> None:
        """Ends the lease. Does not raise, also when the store is lost."""
        name, self._name = self._name, None
        self._leases.release(name)

    def __enter__(self) -> int:
        return self.version

    def __exit__(self, *error: object) -> None:
        self.close()


class Leases:
    """Opens versions for reading. Any thread may use it."""

    def __init__(self, session: Session, me: str, info: Json) -> None:
        self._session, self._me, self._info = session, me, info
        self._manifests: dict[int, Manifest] = {}
        self._numbers = itertools.count(1)

    def open(self, version: int | str, timeout: float) -> tuple[str | None, Manifest]:
        """Leases a version. Returns the lease's name and the manifest. The name is None if no
        leader answers: then the version can be read, but may be retired meanwhile."""
        if version != LATEST and not isinstance(version, int):
            raise InvalidArgument(f'version={version!r} is neither a number nor "latest"')
        known = self._known(version)
        lease = f"{self._me}/{next(self._numbers)}"
        body: Json = {"q": "manifest", "version": version, "lease": lease}
        if known is not None:
            body["have"] = [known.number, known.uid, known.revision]
        changes = self._session.changes
        try:
            answer = self._session.request(body, timeout)
        except BaseException:
            self._session.post({"q": "release", "leases": [lease]})  # the answer may come late
            raise
        if "manifest" in answer:
            known = Manifest(answer["manifest"], self._me, self._info)
            self._session.learn(known.holders)
            self._remember(known)
        assert known is not None
        if not answer["leased"]:
            return None, known
        self._session.add_lease(lease, known.number, changes)
        return lease, known

    def lease(self, version: int | str, timeout: float) -> Lease:
        """Leases a version. Waits for a leader if there is none. Raises Timeout."""
        deadline = time.monotonic() + timeout
        while True:
            lease, manifest = self.open(version, _left(deadline))
            if lease is not None:
                return Lease(self, lease, manifest)
            if time.monotonic() > deadline:
                why = self._session.complaint()
                raise Timeout(f"no version can be leased, though it can be read: {why}")
            time.sleep(_PAUSE_S)

    def release(self, lease: str | None) -> None:
        """Ends a lease, without waiting. Does not raise."""
        if lease is not None:
            self._session.drop_lease(lease)
            with contextlib.suppress(Error):
                self._session.post({"q": "release", "leases": [lease]})

    def use(self, version: int | str, attempt: Attempt, timeout: float, keep: bool = False) -> Any:
        """Leases a version and reads it, until that was right. With ``keep`` the lease stays."""
        deadline = time.monotonic() + timeout
        while True:
            lease, manifest = self.open(version, _left(deadline))
            try:
                result, exact = attempt(manifest, lease, _left(deadline))
                if exact or lease is None or self._is_held(lease, _left(deadline)):
                    if not keep:
                        self.release(lease)
                    return result
                self.release(lease)  # it had ended: other bytes may have been read
                self._manifests.pop(manifest.number, None)
            except (PeerLost, Gone) as error:
                self.release(lease)
                self._manifests.pop(manifest.number, None)  # its copies may be elsewhere now
                if time.monotonic() + _PAUSE_S > deadline:
                    raise error
                time.sleep(_PAUSE_S)
            except BaseException:
                self.release(lease)
                self._manifests.pop(manifest.number, None)
                raise

    def _is_held(self, lease: str, left: float) -> bool:
        """Whether a lease has been held until now."""
        answer = self._session.request({"q": "held", "leases": [lease]}, left)
        return self._session.holds(lease) and lease in answer["held"]

    def _known(self, version: int | str) -> Manifest | None:
        number = max(self._manifests, default=0) if version == LATEST else version
        return self._manifests.get(int(number))

    def _remember(self, manifest: Manifest) -> None:
        self._manifests[manifest.number] = manifest
        while len(self._manifests) > _MOST_MANIFESTS:
            self._manifests.pop(min(self._manifests), None)


def _left(deadline: float) -> float:
    return max(0.05, deadline - time.monotonic())

"""Ray's direct transport of tensors (RDT, since Ray 2.60) over ringcoll.

>>> from ringcoll import ray_transport
>>> ray_transport.register()  # in the driver, before the classes of actors that use it
>>> class Trainer:
...     @ray.method(tensor_transport="ringcoll")
...     def weights(self): ...

Tensors of the CPU. They stay in the memory of the actor that made them, and each actor that gets
the object reads them from there; the actor that made them makes no call for that.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

try:
    from ray.experimental.rdt.tensor_transport_manager import (
        CommunicatorMetadata,
        FetchRequest,
        TensorTransportManager,
        TensorTransportMetadata,
    )
except ImportError as error:
    raise ImportError(f"ringcoll.ray_transport needs Ray 2.60 or later: {error}") from error

from ringcoll.errors import Error
from ringcoll.handles import Handle
from ringcoll.remote import Agent, Read, Region, serve

if TYPE_CHECKING:
    import torch

NAME = "ringcoll"
_DOOR = "ray"  # the name under which all processes of a cluster admit one another
_KEY = "key-of-the-tensor-transport"  # where the cluster's control store has their common key


def register() -> None:
    """Makes the transport known to Ray under the name "ringcoll". Ray passes it on to the actors
    that this process makes from now on. Again: does nothing."""
    import torch
    from ray.experimental import register_tensor_transport

    try:
        register_tensor_transport(NAME, ["cpu"], RingcollTensorTransport, torch.Tensor)
    except ValueError as error:
        if "already registered" not in str(error):
            raise


@dataclass(eq=False)
class RingcollMetadata(TensorTransportMetadata):  # type: ignore[misc]
    """Where the tensors of an object are: a handle for each, or None for one without elements."""

    handles: list[bytes | None] = field(default_factory=list, repr=False)


class Fetch(FetchRequest):  # type: ignore[misc]
    """Tensors on their way to this process. It may be dropped without being waited for."""

    def __init__(self, obj_id: str, tensors: list[Any], handle: Handle[None] | None) -> None:
        super().__init__(obj_id=obj_id, tensors=tensors)
        self._tensors = tensors
        self._handle = handle
        self._aborted = False
        self._changed = threading.Event()
        if handle is None:
            self._changed.set()
        else:
            handle.add_done_callback(lambda _: self._changed.set())

    def abort(self) -> None:
        self._aborted = True
        self._changed.set()

    def wait(self, timeout: float | None) -> list[Any]:
        if not self._changed.wait(timeout):
            raise TimeoutError(f"the tensors of {self.obj_id} have not come within {timeout} s")
        with _errors_of(self.obj_id):
            if self._aborted:
                raise Error("Ray aborted the transfer")
            if self._handle is not None:
                self._handle.wait()  # its callback may run a little before it has ended
        return self._tensors


class RingcollTensorTransport(TensorTransportManager):  # type: ignore[misc]
    """What Ray calls in the processes of the driver and of actors. It opens an agent when the
    process first has tensors to offer or to read."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._agent: Agent | None = None
        self._cluster: object = None  # that the agent has the key of
        self._offered: dict[str, tuple[RingcollMetadata, list[Region]]] = {}
        self._fetches: dict[str, Fetch] = {}
        self._able: set[Any] = set()  # ids of actors that have the transport

    def tensor_transport_backend(self) -> str:
        return NAME.upper()

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        import ray

        if actor._actor_id not in self._able:  # Ray wants to know for each call
            group = actor.__ray_call__.options(concurrency_group="_ray_system")
            ray.get(group.remote(_open))
            self._able.add(actor._actor_id)
        return True

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[torch.Tensor]
    ) -> RingcollMetadata:
        agent = self._opened()
        with self._lock:
            if obj_id in self._offered:  # a task that Ray has tried again
                return self._offered[obj_id][0]
            tensors = [_plain(tensor) for tensor in rdt_object]
            regions: list[Region] = []
            handles: list[bytes | None] = []
            for tensor in tensors:
                if tensor.nbytes:
                    regions.append(agent.register(tensor))
                    handles.append(regions[-1].handle())
                else:
                    handles.append(None)
            metadata = RingcollMetadata(
                tensor_meta=[(tensor.shape, tensor.dtype) for tensor in tensors],
                tensor_device="cpu" if tensors else None,
                handles=handles,
            )
            self._offered[obj_id] = metadata, regions
            return metadata

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: RingcollMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        return self.fetch_multiple_tensors(
            obj_id, tensor_transport_metadata, communicator_metadata, target_buffers
        ).wait(None)

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: RingcollMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[torch.Tensor] | None = None,
    ) -> Fetch:
        import torch

        tensors = target_buffers or [
            torch.empty(shape, dtype=dtype)
            for shape, dtype in tensor_transport_metadata.tensor_meta
        ]
        pairs = zip(tensors, tensor_transport_metadata.handles, strict=True)
        copies = [Read(tensor.detach(), [handle]) for tensor, handle in pairs if handle]
        handle = None
        with _errors_of(obj_id):
            if copies:
                handle = self._opened().transfer_async(copies)
        fetch = Fetch(obj_id, tensors, handle)
        with self._lock:
            self._fetches[obj_id] = fetch
        if handle is not None:
            handle.add_done_callback(lambda _: self._forget(fetch))
        return fetch

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[Any]:
        return fetch_request.wait(None if timeout < 0 else timeout)

    def send_multiple_tensors(
        self,
        tensors: list[torch.Tensor],
        tensor_transport_metadata: RingcollMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        raise NotImplementedError("receivers read the tensors: nothing is sent")

    def garbage_collect(
        self, obj_id: str, tensor_transport_meta: RingcollMetadata, tensors: list[torch.Tensor]
    ) -> None:
        with self._lock:
            _, regions = self._offered.pop(obj_id, (None, []))
        for region in regions:
            region.close()

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        with self._lock:
            fetch = self._fetches.get(obj_id)
        if fetch is not None:  # otherwise it has ended, or has not begun
            fetch.abort()

    def _forget(self, fetch: Fetch) -> None:
        with self._lock:
            if self._fetches.get(fetch.obj_id) is fetch:
                del self._fetches[fetch.obj_id]

    def _opened(self) -> Agent:
        """The agent of this process. Another one after the driver has gone to another cluster."""
        from ray.experimental import internal_kv

        former = None
        with self._lock:
            cluster = internal_kv.internal_kv_get_gcs_client()
            if self._agent is None or cluster is not self._cluster:
                former, self._agent = self._agent, serve(_DOOR, _common_key())
                self._cluster = cluster
                self._offered.clear()
                self._able.clear()
            agent = self._agent
        if former is not None:  # without the lock, which its callbacks take
            former.close()
        return agent


def _common_key() -> str:
    """The key of all processes of the cluster. The first that asks makes it."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_KEY, secrets.token_hex(16), overwrite=False, namespace=NAME)
    key = internal_kv._internal_kv_get(_KEY, namespace=NAME)
    return bytes(key).decode()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it where its memory is not its elements in order."""
    if tensor.device.type != "cpu":
        raise ValueError(f"ringcoll carries tensors of the CPU, not of {tensor.device}")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _open(actor: Any) -> None:
    """Opens the agent of an actor."""
    from ray.experimental.rdt.util import get_tensor_transport_manager

    get_tensor_transport_manager(NAME.upper())._opened()


@contextlib.contextmanager
def _errors_of(obj_id: str) -> Iterator[None]:
    """Raises Ray's error in place of the library's."""
    from ray.exceptions import RayDirectTransportError

    try:
        yield
    except Error as error:
        raise RayDirectTransportError(
            f"the tensors of object {obj_id} cannot be read: {error}. The actor that has made them "
            "may have ended"
        ) from error

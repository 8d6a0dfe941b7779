"""Which device was handed which objects: the messages of a run, and the parts of their content.

The SuperLink gives an object to whoever names its identifier. The gate sees which objects the messages of a device
have, and refuses those that belong to messages of other devices only. It does not know the objects that were handed
out before it started, so it refuses none in the ten minutes after its start.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from google.protobuf.message import DecodeError

MESSAGES = "/v1/fleet/pull-messages"
_FETCH, _CONFIRM = "/v1/fleet/pull-object", "/v1/fleet/confirm-message-received"
_MOST = 100_000  # objects that are remembered, the latest
_SETTLED_SECONDS = 600.0  # after the start


class HandedObjects:
    """Remembers the devices of each object that was handed out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._settled = clock() + _SETTLED_SECONDS
        self._devices: OrderedDict[str, set[str]] = OrderedDict()

    def note(self, device: str, answer: bytes) -> None:
        """Remember the objects of the messages that a device has pulled; `answer` is a PullMessagesResponse."""
        response = PullMessagesResponse()
        try:
            response.ParseFromString(answer)
        except DecodeError:
            return
        for identifier in _identifiers(response.message_object_trees):
            self._devices.setdefault(identifier, set()).add(device)
            self._devices.move_to_end(identifier)
        while len(self._devices) > _MOST:
            self._devices.popitem(last=False)

    def allowed(self, device: str, path: str, body: bytes) -> bool:
        """Return whether a device may have what a request asks for; damaged requests are not allowed, others are."""
        try:
            if path == _FETCH:
                identifier = PullObjectRequest.FromString(body).object_id
            elif path == _CONFIRM:
                identifier = ConfirmMessageReceivedRequest.FromString(body).message_object_id
            else:
                return True
        except DecodeError:
            return False
        devices = self._devices.get(identifier)
        return devices is None or device in devices or self._clock() < self._settled


def _identifiers(trees: Iterable[ObjectTree]) -> Iterator[str]:
    for tree in trees:
        yield tree.object_id
        yield from _identifiers(tree.children)

"""The client's answers in a secure round: four messages, of which the app sees the third, in which it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.messages import FIELD, payload_content
from fedmrn_app.plugin.arrays import Values
from fedmrn_app.plugin.secure_sum import SECURE, Steps, SumLayout
from fedmrn_app.secure.client import answer
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.messages import Envelope

Summand = tuple[SumLayout, Values, Values, NDArray[np.uint8]]  # the layout, arrays sent and trained, mask bits
_MAX_BITS = 32


def secure_content(content: RecordDict, message: bytes, steps: Steps | None = None) -> RecordDict:
    """Return the content with a message of the secure sum, and with `steps` how the client rounds its changes."""
    fields: dict[str, Any] = {FIELD: message}
    if steps is not None:
        fields |= {"bits": steps.bits, "bound": steps.bound}
    content[SECURE] = ConfigRecord(fields)
    return content


def read_steps(content: RecordDict) -> Steps:
    """Return how the server asks the client to round its changes.

    Raises:
        PayloadError: it does not say, or says what no sum can hold.
    """
    record = cast(Mapping[str, Any], content.config_records[SECURE])
    bits, bound = record.get("bits"), record.get("bound")
    if not (isinstance(bits, int) and 2 <= bits <= _MAX_BITS and isinstance(bound, float) and 0 < bound < np.inf):
        raise PayloadError(f"the secure sum has bits={bits} and bound={bound}", code="secure-steps", value=bits)
    return Steps(bits, bound)


def answer_secure(message: Message, context: Context, train: Callable[[int], Summand]) -> Message:
    """Answer a message of the secure sum; what the client keeps until the next one is in its context.

    Args:
        message: with a message of the secure sum.
        context: of the app.
        train: called with the client's number in the sum once the client adds its input; returns what it adds.

    Raises:
        PayloadError: the message is refused.
    """
    data, kept = message.content.config_records[SECURE].get(FIELD), context.state.config_records.get(SECURE)
    if not isinstance(data, bytes):
        raise PayloadError("the message of the secure sum is malformed", code="order")
    client = Envelope.of(data)[0].client

    def vectors(summands: int) -> tuple[Fields, Sequence[Words]]:
        layout, sent, trained, mask = train(client)
        fields = layout.fields(summands)
        return fields, layout.words(fields, sent, trained, mask)

    state, reply = answer(None if kept is None else cast(bytes, kept[FIELD]), data, vectors)
    if state is None:
        context.state.pop(SECURE, None)
    else:
        context.state[SECURE] = ConfigRecord({FIELD: state})
    return Message(payload_content(reply), reply_to=message)

"""The client's answers in a secure round: four messages, of which the app sees the third, in which it trains."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.exchange.client_storage import Secrets, state_root
from fedmrn_app.exchange.messages import FIELD, payload_content
from fedmrn_app.exchange.secure_answers import accept_once
from fedmrn_app.plugin.arrays import Values, check_finite, only_arrays, to_values
from fedmrn_app.plugin.client_round import ClientRound, RoundContent, in_sent_types, no_masks, read_bound
from fedmrn_app.plugin.difference import check_returned
from fedmrn_app.plugin.secure_sum import SumLayout, read_steps, sum_binding
from fedmrn_app.plugin.settings import RECORD, SECURE, ClientTask, RoundContext
from fedmrn_app.secure.fields import Fields, Words
from fedmrn_app.secure.graph import LeastNumbers, read_least
from fedmrn_app.secure.messages import Envelope
from fedmrn_app.wire.primitives import packed_bits

_NODE = 0  # under which a node keeps its secrets: it is one client
Summand = tuple[SumLayout, Values, Values, NDArray[np.uint8]]  # the layout, arrays sent and trained, mask bits


def answer_secure(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer a message of the secure sum; what the client keeps until the next one is in its context.

    Args:
        message: with a message of the secure sum.
        context: of the app.
        call_next: calls the app, once the client is to add its input.

    Raises:
        PayloadError: the message is refused.
        RunError: as for `compress_uplink`, or the training does not fit a sum.
    """
    data = message.content.config_records[SECURE].get(FIELD)
    if not isinstance(data, bytes):
        raise PayloadError("the message of the secure sum is malformed", code="order")
    client = Envelope.of(data)[0].client

    def vectors(summands: int) -> tuple[Fields, Sequence[Words]]:
        layout, sent, trained, mask = _summand(message, context, call_next, client)
        fields = layout.fields(summands)
        return fields, layout.words(fields, sent, trained, mask)

    def binding() -> bytes:
        task = ClientTask.read(message.content.config_records[RECORD])
        return sum_binding(message.content, task.settings.build(secure=True).training.learns_masks)

    least = LeastNumbers.of(1, read_least(context.node_config))
    accepted = accept_once(_secrets(context), _NODE, data, binding=binding, least=least)
    return Message(payload_content(accepted.answer(vectors)), reply_to=message)


def _secrets(context: Context) -> Secrets:
    """Return what a node keeps of a run between two messages, on its disk: Flower may start several at once."""
    name = context.state.config_records.get(SECURE)
    if name is None:
        name = context.state[SECURE] = ConfigRecord({FIELD: os.urandom(16).hex()})
    run = hashlib.sha256(f"{context.run_id} {context.node_id} {name[FIELD]!r}".encode()).hexdigest()[:32]
    return Secrets(state_root(context.node_config) / f"plugin-{run}")


def _summand(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message], client: int
) -> Summand:
    """Train as the message asks, and return what the client adds to the sum of its round.

    Args:
        message: with the arrays, the task and the message of the secure sum.
        context: of the app.
        call_next: calls the app.
        client: number of the client in the sum.

    Raises:
        RunError: as for `compress_uplink`, or the training does not fit a sum.
    """
    content = message.content
    task, steps = ClientTask.read(content.config_records[RECORD]), read_steps(content)
    sent, bound = to_values(only_arrays(content)[1]), read_bound(content)
    if bound is not None:
        reason = f"the server asks for updates of norm {bound:g} or less, which it cannot see in a secure sum"
        raise RunError(f"{reason}; leave secure=True out there", code="clipping", value=bound)
    client_round = ClientRound(task, task.settings.build(secure=True), sent, client=client)
    layout = SumLayout.of(sent, steps, masks=client_round.method.training.learns_masks)
    for name in (RECORD, SECURE):
        del content[name]
    message.content = RoundContent(content, client_round)
    reply = call_next(message, context)
    if not reply.has_content():
        raise RunError(f"the app answered with an error: {reply.error.reason}", code="client")
    trained = in_sent_types(sent, to_values(only_arrays(reply.content)[1]))
    check_finite(sent, trained)
    return layout, sent, trained, _mask_bits(client_round, layout, trained)


def _mask_bits(client_round: ClientRound, layout: SumLayout, trained: Values) -> NDArray[np.uint8]:
    """Return the bits of a learned mask, uint8 (d,); empty for other trainings.

    Raises:
        RunError: not exactly the tensors of the layout were learned as masks, or other weights are returned.
    """
    method, learned, sent = client_round.method, client_round.learned, client_round.values
    if not method.training.learns_masks:
        return np.empty(0, np.uint8)
    if learned is None:
        raise no_masks(method)
    parts = layout.parts
    wrong = sorted(set(parts.coded) ^ set(learned.names))
    wrong += [name for name, other in parts.tied.items() if not np.array_equal(trained[name], trained[other])]
    if wrong:
        reason = f"{wrong[0]}: is not learned as a mask, as secure sums with {method.name} need of every matrix"
        advice = "send only what is trained, train it with the same optimizer, or say method='fedavg' on the server"
        raise RunError(f"{reason}; {advice}", code="not-masked", key=wrong[0])
    task = client_round.task
    shared = RoundContext.of(method, task, sent, layout.ways)
    body, _ = method.encode(learned.update(), None, shared.context, task.seed, client_round.private_seed)
    count = shared.context.count
    bits = np.unpackbits(packed_bits(body.data, count), count=count, bitorder="little")
    expected = learned.left_in_model()
    if expected is None:
        vector = shared.context.vector + shared.mean_update(bits.astype(np.float32), task.seed)
        expected = parts.replaced(sent, vector, parts.dense_vector(sent), parts.exact_bytes(sent))
    check_returned({name: expected[name] for name in learned.names}, trained, sent)
    return bits

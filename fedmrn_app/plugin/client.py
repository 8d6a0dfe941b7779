"""The client's half of the plug-in: a Flower mod that replaces the arrays of a training reply by a short payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import RunError, VersionError
from fedmrn_app.exchange.messages import lost_content
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.layout import Float32Array
from fedmrn_app.plugin.arrays import (
    Values,
    Way,
    check_finite,
    find_tied,
    is_unmoved,
    only_arrays,
    to_values,
    usual_ways,
)
from fedmrn_app.plugin.client_round import ClientRound, RoundContent, in_sent_types, no_masks, read_bound
from fedmrn_app.plugin.difference import check_returned, distance, moved_towards
from fedmrn_app.plugin.scales import SCALES
from fedmrn_app.plugin.settings import (
    GRID,
    RECORD,
    REFUSED,
    SECURE,
    WITHOUT_MASKS,
    ClientTask,
    OtherFormatError,
    RoundContext,
)

if TYPE_CHECKING:
    from fedmrn_app.plugin.residual import NodeResidual

_ATTEMPTS = 20  # to keep a bound; an update gets shorter each time


def compress_uplink(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Send what the app trained as a short payload, in the way that `Compressed` on the server asks for.

    This is a Flower mod; nothing else in the app changes:

        app = ClientApp(mods=[compress_uplink])

    Messages that do not ask for compression and replies that are errors pass unchanged. A client whose plug-in is older
    or newer than the server's tells the server so, and is sent plain arrays.

    Raises:
        RunError: the reply has no arrays or other arrays than were sent, or some that are not finite; the server asks
            for learned masks and no optimizer learned any, or the reply holds other weights than it learned; or the
            update cannot be coded within the norm to which the server clips.
    """
    if not message.has_content():
        return call_next(message, context)
    if SECURE in message.content:
        from fedmrn_app.plugin.secure_client import answer_secure  # few apps add up in secret

        return answer_secure(message, context, call_next)
    on_grid, record = GRID in message.content, message.content.config_records.get(RECORD)
    try:
        task = None if record is None else ClientTask.read(record)
        if on_grid:
            from fedmrn_app.plugin.downlink import read_arrays  # by default, arrays are sent as they are

            read_arrays(message.content, context)
    except VersionError:
        return Message(lost_content("version"), reply_to=message)
    except OtherFormatError as error:
        return Message(RecordDict({RECORD: ConfigRecord({REFUSED: str(error)})}), reply_to=message)
    if task is None:
        reply = call_next(message, context)
        if on_grid and reply.has_content():
            reply.content[GRID] = ConfigRecord()  # says that the app had the arrays of the grid
        return reply
    values = to_values(only_arrays(message.content)[1])
    client_round = ClientRound(task, task.settings.build(), values, read_bound(message.content))
    del message.content[RECORD]
    message.content = RoundContent(message.content, client_round)
    reply = call_next(message, context)
    if reply.has_content():
        _compress(reply, client_round, context)
    return reply


def _compress(reply: Message, client_round: ClientRound, context: Context) -> None:
    """Replace the arrays of a reply by the record that the server reads, under the same key."""
    key, arrays = only_arrays(reply.content)
    sent, learned = client_round.values, client_round.learned
    trained = in_sent_types(sent, to_values(arrays))
    check_finite(sent, trained)
    residual = _residual_of(client_round, context)
    coded = _code(client_round, trained, None if residual is None else residual.read())
    if learned is not None:
        expected = learned.left_in_model() or coded.decoded()
        try:
            check_returned({name: expected[name] for name in learned.names}, trained, sent)
        except RunError:
            if learned.on_difference == "error":
                raise
            task = client_round.task.without_masks()
            coded = _code(ClientRound(task, task.settings.build(), sent), trained, None)
            coded.record[WITHOUT_MASKS] = True
    if coded.residual is not None and residual is not None:
        residual.write(coded.residual)
    del reply.content[key]
    reply.content[key] = coded.record


def _residual_of(client_round: ClientRound, context: Context) -> NodeResidual | None:
    """Return what the node's last update left out; None without error feedback."""
    if not client_round.method.error_feedback:
        return None
    from fedmrn_app.plugin.residual import NodeResidual  # with what reads and writes the disk

    return NodeResidual(context, client_round.task)


@dataclass
class _Coded:
    """A coded update.

    Attributes:
        record: what the server reads.
        residual: what the method leaves out, with error feedback.
        decoded: returns the arrays that the server will read.
    """

    record: ConfigRecord
    residual: Float32Array | None
    decoded: Callable[[], Values]


def _code(client_round: ClientRound, trained: Values, before: Float32Array | None) -> _Coded:
    """Code what was trained, and shorten it until the decoded update keeps the bound.

    Raises:
        RunError: it does not keep the bound however short it is.
    """
    bound, sent, factor = client_round.bound, client_round.values, 1.0
    coded = _code_once(client_round, trained, before)
    for _ in range(_ATTEMPTS if bound is not None else 0):
        norm = distance(coded.decoded(), sent)
        if norm <= cast(float, bound):
            return coded
        factor *= 0.999 * cast(float, bound) / norm
        shorter = None if before is None else before * np.float32(factor)
        coded = _code_once(client_round, moved_towards(sent, trained, factor), shorter)
    if bound is not None:
        reason = f"{client_round.method.name} cannot code an update within the norm {bound:g} to which the server clips"
        raise RunError(f"{reason}; clip to a larger norm, or say method='eden'", code="clipping", value=bound)
    return coded


def _code_once(client_round: ClientRound, trained: Values, before: Float32Array | None) -> _Coded:
    task, method, sent = client_round.task, client_round.method, client_round.values
    ways = _choose_ways(client_round, trained)
    shared = RoundContext.of(method, task, sent, ways)
    parts, learned = shared.parts, client_round.learned
    x = learned.update() if learned else parts.vector(trained) - parts.vector(sent)
    if before is not None and before.size != x.size:
        before = None  # other tensors were trained in the last round
    body, residual = shared.protocol.method.encode(x, before, shared.context, task.seed, client_round.private_seed)
    header = header_of(shared.protocol, task.seed, 1, shared.context.count)
    payload = write_upload(shared.protocol, header, Update(body, parts.dense_vector(trained)), shared.dense)
    record, exact = ConfigRecord({"": payload}), parts.exact_bytes(trained)
    if not np.array_equal(ways, usual_ways(sent)):
        record["ways"] = ways.tobytes()
    if parts.exact:
        record["exact"] = exact
    exponents = None if learned is None or learned.scales is None else learned.scales.exponents
    if exponents is not None:
        record[SCALES] = exponents.tobytes()
    return _Coded(record, residual, lambda: shared.decode(sent, task.seed, payload, exact, exponents)[0])


def _choose_ways(client_round: ClientRound, trained: Values) -> NDArray[np.uint8]:
    """Return how each tensor is sent: unchanged ones not at all, and those without a learned mask densely."""
    method, sent = client_round.method, client_round.values
    learned: Sequence[str] = ()
    if client_round.learned is not None:
        learned = client_round.learned.names
    elif method.training.learns_masks:
        raise no_masks(method)
    ways = usual_ways(sent)
    for number, (name, before) in enumerate(sent.items()):
        if learned and ways[number] == Way.CODED:
            if name in learned:
                continue
            other = find_tied(name, sent, learned)
            tied = other is not None and np.array_equal(trained[other], trained[name])
            ways[number] = Way.TIED if tied else Way.DENSE
        if ways[number] in (Way.CODED, Way.DENSE) and is_unmoved(before, trained[name]):
            ways[number] = Way.UNCHANGED
    return ways

"""The client's half of the plug-in: a Flower mod that replaces the arrays of a training reply by a short payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import RunError
from fedmrn_app.exchange.messages import lost_content
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.federation.versions import VersionError
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.method import Method
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
from fedmrn_app.plugin.difference import check_returned, distance, moved_towards
from fedmrn_app.plugin.downlink import GRID, read_arrays
from fedmrn_app.plugin.scales import SCALES, OwnScales
from fedmrn_app.plugin.secure_client import Summand, answer_secure, read_steps
from fedmrn_app.plugin.secure_sum import SECURE, SumLayout
from fedmrn_app.plugin.settings import (
    RECORD,
    REFUSED,
    WITHOUT_MASKS,
    ClientTask,
    OtherFormatError,
    RoundContext,
    learns_masks,
)
from fedmrn_app.seeds import mix
from fedmrn_app.wire.primitives import packed_bits

OnDifference = Literal["error", "eden"]

_CLIPPING_NORM = "clipping_norm"  # what Flower's strategies that clip on clients call their bound in a message
_ATTEMPTS = 20  # to keep a bound; an update gets shorter each time
_RESIDUAL = "fedmrn-residual"  # record in the client's state, with error feedback


@dataclass(frozen=True)
class Learned:
    """What an optimizer of the plug-in learns as masks.

    Attributes:
        names: of the tensors, in the message.
        update: returns their updates after the training, in the order of `Parts.vector`, float32 (d,).
        left_in_model: returns what the last step left in the model; None if that is the weights plus the last masks.
        on_difference: what happens if other weights are returned.
        scales: by which the noise was multiplied and the update divided; None if the server sets the scale.
    """

    names: Sequence[str]
    update: Callable[[], Float32Array]
    left_in_model: Callable[[], Values | None]
    on_difference: OnDifference
    scales: OwnScales | None = None


@dataclass
class ClientRound:
    """One client's training in one round, from the message to the reply.

    Attributes:
        task: what the server asks.
        method: of the run.
        values: the arrays that were sent.
        bound: largest norm of an update that the server asks for; None for any.
        learned: what an optimizer learns as masks; None for other trainings.
        client: number of the client in a secure sum; None without.
    """

    task: ClientTask
    method: Method
    values: Values
    bound: float | None = None
    learned: Learned | None = None
    client: int | None = None

    @property
    def private_seed(self) -> int:
        """The 64-bit seed of the client's own randomness; it follows from the seed that the server sent."""
        return mix(self.task.seed ^ ((self.client or 0) + 1))


class RoundContent(RecordDict):
    """The content of a message that asks for compression; it carries the round to the app's optimizer."""

    def __init__(self, content: RecordDict, client_round: ClientRound) -> None:
        super().__init__(dict(content))
        self.client_round = client_round


def round_of(message: Message) -> ClientRound:
    """Return the round that a message opened.

    Raises:
        RunError: the message has not passed the mod, or does not ask for compression.
    """
    content = message.content
    if not isinstance(content, RoundContent):
        raise RunError(
            "this message asks for no compression; say ClientApp(mods=[compress_uplink]) here, and Compressed(...) "
            "around the server's strategy",
            code="no-mod",
        )
    return content.client_round


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
        return answer_secure(message, context, partial(_summand, message, context, call_next))
    on_grid, record = GRID in message.content, message.content.config_records.get(RECORD)
    try:
        task = None if record is None else ClientTask.read(record)
        if on_grid:
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
    client_round = ClientRound(task, task.settings.build(), values, _read_bound(message.content))
    del message.content[RECORD]
    message.content = RoundContent(message.content, client_round)
    reply = call_next(message, context)
    if reply.has_content():
        _compress(reply, client_round, context)
    return reply


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
    sent, bound = to_values(only_arrays(content)[1]), _read_bound(content)
    if bound is not None:
        reason = f"the server asks for updates of norm {bound:g} or less, which it cannot see in a secure sum"
        raise RunError(f"{reason}; leave secure=True out there", code="clipping", value=bound)
    client_round = ClientRound(task, task.settings.build(secure=True), sent, client=client)
    layout = SumLayout.of(sent, steps, masks=learns_masks(client_round.method))
    for name in (RECORD, SECURE):
        del content[name]
    message.content = RoundContent(content, client_round)
    reply = call_next(message, context)
    if not reply.has_content():
        raise RunError(f"the app answered with an error: {reply.error.reason}", code="client")
    trained = _in_sent_types(sent, to_values(only_arrays(reply.content)[1]))
    check_finite(sent, trained)
    return layout, sent, trained, _mask_bits(client_round, layout, trained)


def _mask_bits(client_round: ClientRound, layout: SumLayout, trained: Values) -> NDArray[np.uint8]:
    """Return the bits of a learned mask, uint8 (d,); empty for other trainings.

    Raises:
        RunError: not exactly the tensors of the layout were learned as masks, or other weights are returned.
    """
    method, learned, sent = client_round.method, client_round.learned, client_round.values
    if not learns_masks(method):
        return np.empty(0, np.uint8)
    if learned is None:
        raise _no_masks(method)
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


def _read_bound(content: RecordDict) -> float | None:
    """Return the norm to which Flower's strategies ask clients to clip; None if they do not."""
    records = cast(Sequence[Mapping[str, Any]], list(content.config_records.values()))
    bounds = [float(record[_CLIPPING_NORM]) for record in records if _CLIPPING_NORM in record]
    return min(bounds) if bounds else None


def _compress(reply: Message, client_round: ClientRound, context: Context) -> None:
    """Replace the arrays of a reply by the record that the server reads, under the same key."""
    key, arrays = only_arrays(reply.content)
    sent, learned = client_round.values, client_round.learned
    trained = _in_sent_types(sent, to_values(arrays))
    check_finite(sent, trained)
    kept = context.state.array_records.get(_RESIDUAL)
    coded = _code(client_round, trained, None if kept is None else kept["x"].numpy())
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
    if coded.residual is not None:
        context.state[_RESIDUAL] = ArrayRecord({"x": Array(coded.residual)})
    del reply.content[key]
    reply.content[key] = coded.record


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
    elif learns_masks(method):
        raise _no_masks(method)
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


def _no_masks(method: Method) -> RunError:
    return RunError(
        f"the server asks for {method.name}, whose masks are learned; train with MaskedSGD(model, message, ...) or "
        "learn_masks(optimizer, model, message, ...)",
        code="no-masks",
        value=method.name,
    )


def _in_sent_types(sent: Values, trained: Values) -> Values:
    """Return the trained tensors in the dtypes and shapes that were sent; Flower's mean changes those of counters.

    Raises:
        RunError: the names or shapes are not those that were sent.
    """
    if list(sent) != list(trained):
        other = ", ".join(sorted(set(sent) ^ set(trained))[:3]) or "in another order"
        raise RunError(f"the reply has other arrays than were sent: {other}", code="names", value=other)
    for name, before in sent.items():
        if before.size != trained[name].size or (before.shape != trained[name].shape and before.size > 1):
            reason = f"{name}: was sent with the shape {before.shape} and came back with {trained[name].shape}"
            raise RunError(reason, code="shape", key=name, value=trained[name].shape)
    return {name: trained[name].astype(before.dtype).reshape(before.shape) for name, before in sent.items()}

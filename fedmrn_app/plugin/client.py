"""The client's half of the plug-in: a Flower mod that replaces the arrays of a training reply by a short payload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import RunError, VersionError
from fedmrn_app.exchange.messages import lost_content
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.fedavg import Floats
from fedmrn_app.plugin.arrays import (
    FROM_ZERO,
    KINDS,
    Values,
    Way,
    check_finite,
    to_record,
    to_values,
    usual_ways,
)
from fedmrn_app.plugin.bounded import pack_bounded
from fedmrn_app.plugin.client_round import ClientRound, RoundContent, in_sent_types, no_masks, read_bound
from fedmrn_app.plugin.comparison import find_tied, is_same, is_unmoved
from fedmrn_app.plugin.difference import check_returned, distance, moved_towards
from fedmrn_app.plugin.exact import pack_exact
from fedmrn_app.plugin.fidelity import even
from fedmrn_app.plugin.kept import matrices, pack_kept
from fedmrn_app.plugin.reply_form import ReplyForm, base_keys, default_key, statistic_shapes, ways_for_reply
from fedmrn_app.plugin.scales import SCALES
from fedmrn_app.plugin.self_check import SMALL, Finer, finer_than, name_once, shares_that_arrive
from fedmrn_app.plugin.settings import (
    BESIDE,
    GRID,
    PACKED,
    RECORD,
    REFUSED,
    SECURE,
    WITHOUT_ARRAYS,
    WITHOUT_MASKS,
    ClientTask,
    OtherFormatError,
    RoundContext,
)

if TYPE_CHECKING:
    from fedmrn_app.plugin.residual import NodeResidual

_ATTEMPTS = 20  # to keep a bound; an update gets shorter each time
_AS_ASKED = Finer()


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
    records = {key: to_values(record) for key, record in message.content.array_records.items()}
    values: Values = next(iter(records.values()), {})
    client_round = ClientRound(task, task.settings.build(), values, read_bound(message.content), records=records)
    del message.content[RECORD]
    message.content = RoundContent(message.content, client_round)
    reply = call_next(message, context)
    if reply.has_content():
        _compress(reply, client_round, context)
    return reply


def _compress(reply: Message, client_round: ClientRound, context: Context) -> None:
    """Replace the arrays of a reply by records that the server reads, under the same keys.

    An ArrayRecord that the message has no arrays for is sent as it is.

    Raises:
        RunError: the reply's only ArrayRecord is none of the message's.
    """
    content, records = reply.content, client_round.records
    replied = {key: _in_little_endian(to_values(record)) for key, record in content.array_records.items()}
    if len(replied) > 1:
        client_round.statistics = statistic_shapes(replied, records)
    coded: dict[str, ConfigRecord] = {}
    beside: dict[str, ArrayRecord] = {}
    for key, base in base_keys(replied, records).items():
        arrays = replied[key]
        if base is None and len(replied) == 1 and any(records.values()):
            unknown = sorted(set(arrays) - {name for values in records.values() for name in values})
            other = ", ".join(unknown[:3]) or key
            raise RunError(f"the reply has other arrays than were sent: {other}", code="names", value=other)
        if base is None:
            continue
        record, plain = _compress_record(arrays, base, client_round, context)
        if base != default_key(key, records):
            record["of"] = base
        coded[key] = record
        if plain:
            beside[f"{BESIDE}{key}"] = to_record(plain)
    whole = {key: coded.get(key, record) for key, record in content.items()}
    marks = {} if coded else {RECORD: ConfigRecord({WITHOUT_ARRAYS: True})}
    reply.content = RecordDict({**whole, **beside, **marks})


def _in_little_endian(arrays: Values) -> Values:
    """Return arrays in the order of bytes in which they travel."""
    return {name: value.astype(value.dtype.newbyteorder("<"), copy=False) for name, value in arrays.items()}


def _compress_record(
    arrays: Values, base: str, client_round: ClientRound, context: Context
) -> tuple[ConfigRecord, Values]:
    """Return what the server reads instead of an ArrayRecord, and the arrays of it that Flower sends.

    Args:
        arrays: of the reply.
        base: key of the arrays in the message.
        client_round: of the message.
        context: of the node.
    """
    sent, first = client_round.records[base], base == next(iter(client_round.records))
    masks = client_round.method.training.learns_masks
    if not first:
        if client_round.bound is not None:
            reason = f"the server asks for updates of norm {client_round.bound:g} or less of a single ArrayRecord"
            raise RunError(f"{reason}; send one, or clip on the server", code="clipping", value=client_round.bound)
        client_round = client_round.without_masks(sent, further=True)
    learned = client_round.learned
    form = ReplyForm.of(sent, arrays, pairs=client_round.task.pairs)
    trained = {name: arrays[name] for name in sent if name in arrays}
    if not client_round.task.forms:
        trained = dict(in_sent_types(sent, arrays))
        form = ReplyForm.of(sent, trained)
    check_finite(sent, trained)
    trained = form.coded(sent, trained)
    residual = _residual_of(client_round, context) if first else None
    coded = _code(client_round, form, trained, None if residual is None else residual.read())
    if learned is not None:
        expected = learned.left_in_model() or coded.decoded()
        try:
            check_returned({name: expected[name] for name in learned.names}, trained, sent)
        except RunError:
            if learned.on_difference == "error":
                raise
            learned, coded = None, _code(client_round.without_masks(sent), form, trained, None)
    if masks and learned is None:
        coded.record[WITHOUT_MASKS] = True
    if coded.residual is not None and residual is not None:
        residual.write(coded.residual)
    form.write(coded.record, sent)
    return coded.record, {name: trained[name] for name in coded.beside}


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
        decoded: returns the arrays that the server will read, without those that Flower sends.
        beside: names of the arrays that Flower sends.
        names: of the tensors that the method codes.
        base: the arrays that it codes them from.
    """

    record: ConfigRecord
    residual: Float32Array | None
    decoded: Callable[[], Values]
    beside: Sequence[str]
    names: Sequence[str]
    base: Values


def _code(client_round: ClientRound, form: ReplyForm, trained: Values, before: Float32Array | None) -> _Coded:
    """Code what was trained, and shorten it until the decoded update keeps the bound.

    Raises:
        RunError: it does not keep the bound however short it is.
    """
    bound, factor = client_round.bound, 1.0
    if bound is not None and client_round.task.differences:
        reason = f"reply=difference: the server asks for weights whose updates have the norm {bound:g} or less"
        raise RunError(f"{reason}; leave reply out, or clip on the server", code="clipping", key="reply")
    coded = _code_once(client_round, form, trained, before)
    if bound is None:
        return _checked(coded, client_round, form, trained)
    base = form.base(client_round.values)
    for _ in range(_ATTEMPTS):
        norm = distance(coded.decoded(), base)
        if norm <= bound:
            return coded
        factor *= 0.999 * bound / norm
        shorter = None if before is None else before * np.float32(factor)
        coded = _code_once(client_round, form, moved_towards(base, trained, factor), shorter)
    reason = f"{client_round.method.name} cannot code an update within the norm {bound:g} to which the server clips"
    raise RunError(f"{reason}; clip to a larger norm, or say method='eden'", code="clipping", value=bound)


def _checked(coded: _Coded, client_round: ClientRound, form: ReplyForm, trained: Values) -> _Coded:
    """Return an update that is coded more finely where less than half of a tensor would arrive.

    Masks have their own length, an error feedback sends later what is missing, and with the default all tensors have
    about the same relative error, which is unbiased.
    """
    task, method = client_round.task, client_round.method
    if not task.checks or task.even or method.error_feedback or client_round.learned is not None:
        return coded
    if isinstance(method.codec, Floats):  # nothing is lost
        return coded
    finer: Finer | None = Finer()
    while finer is not None:
        shares = shares_that_arrive(coded.names, coded.base, trained, coded.decoded())
        if shares and finer == Finer():
            name_once(shares, method.name)
        finer = finer_than(finer, shares)
        if finer is not None:
            coded = _code_once(client_round, form, trained, None, finer)
    return coded


def _code_once(
    client_round: ClientRound,
    form: ReplyForm,
    trained: Values,
    before: Float32Array | None,
    finer: Finer = _AS_ASKED,
) -> _Coded:
    task, method = client_round.task, client_round.method
    ways = _choose_ways(client_round, form, trained)
    for number, (name, value) in enumerate(form.base(client_round.values).items()):
        small = task.even and task.checks and value.size < SMALL
        if (small or name in finer.dense) and ways[number] & KINDS == Way.CODED:
            ways[number] = Way.DENSE | (ways[number] & FROM_ZERO)
    base = form.base(client_round.values, ways)
    shared = RoundContext.of(method, task, base, ways)
    parts, learned = shared.parts, client_round.learned
    x = learned.update() if learned else parts.update(base, trained)
    if before is not None and before.size != x.size:
        before = None  # other tensors were trained in the last round
    exponents = None if learned is None or learned.scales is None else learned.scales.exponents
    if learned is None and parts.coded and (task.even or finer.even):
        exponents = even(x, parts.layout)
    body, residual = shared.protocol.method.encode(x, before, shared.context, task.seed, client_round.private_seed)
    if exponents is not None and finer.longer:
        exponents = exponents + np.array([finer.longer.get(name, 0) for name in parts.coded], np.int8)
    header = header_of(shared.protocol, task.seed, 1, shared.context.count)
    payload = write_upload(shared.protocol, header, Update(body, parts.dense_vector(trained)), shared.dense)
    record, exact = ConfigRecord({"": payload}), parts.exact_bytes(trained)
    bounded = pack_bounded(parts.bounded, base, trained)
    if not np.array_equal(ways, usual_ways(base)):
        record["ways"] = ways.tobytes()
    if (packed := pack_exact(exact) if task.packs else None) is not None:
        record[PACKED] = packed
    elif parts.exact:
        record["exact"] = exact
    if bounded:
        record["bounded"] = bounded
    if exponents is not None:
        record[SCALES] = exponents.tobytes()
    kept = b""
    if learned is None and residual is None and not isinstance(method.codec, Floats):
        kept = pack_kept(matrices(parts, base), base, trained)
    if kept:
        record["kept"] = kept

    def decoded() -> Values:
        return shared.decode(base, task.seed, payload, exact, exponents, bounded, kept)[0]

    return _Coded(record, residual, decoded, parts.beside, parts.coded, base)


def _choose_ways(client_round: ClientRound, form: ReplyForm, trained: Values) -> NDArray[np.uint8]:
    """Return how each tensor is sent: unchanged ones not at all, and those without a learned mask densely.

    Raises:
        RunError: the server asks for masks, and none were learned; or one was learned of a tensor that is not returned.
    """
    method, base, task = client_round.method, form.base(client_round.values), client_round.task
    learned: Sequence[str] = ()
    if client_round.learned is not None:
        learned = client_round.learned.names
        if missing := sorted(set(learned) - set(trained)):
            reason = f"{missing[0]}: is learned as a mask and not returned; return all arrays that were sent"
            raise RunError(f"{reason}, or say Compressed(..., method='eden')", code="names", value=missing[0])
    elif method.training.learns_masks:
        raise no_masks(method)
    ways = usual_ways(base)
    if task.forms:
        ways = ways_for_reply(
            base,
            trained,
            differences=task.differences,
            further=client_round.further,
            beside=client_round.statistics,
            server_round=0 if isinstance(method.codec, Floats) else task.server_round,  # nothing is lost
        )
    for number, (name, before) in enumerate(base.items()):
        way, from_zero = int(ways[number]) & KINDS, int(ways[number]) & FROM_ZERO
        if name in learned:
            ways[number] = Way.CODED
            continue
        if learned and way == Way.CODED:
            other = find_tied(name, base, learned)
            tied = other is not None and is_same(trained[other], trained[name])
            ways[number] = Way.TIED if tied else Way.DENSE | from_zero
        start = np.zeros_like(before) if from_zero else before
        sent_as_is = () if task.forms else (Way.EXACT,)
        if way not in (Way.BESIDE, *sent_as_is) and is_unmoved(start, trained[name]):
            ways[number] = Way.UNCHANGED | from_zero
    return ways

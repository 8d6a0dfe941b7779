"""Reads the replies of clients that trained: payloads, and the plain arrays of clients without the mod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import one_line, remote_reason
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.rate_control import least_mask_bits, mask_bits
from fedmrn_app.plugin.arrays import (
    Values,
    checked_ways,
    may_change_length,
    only_arrays,
    to_record,
    to_values,
    usual_ways,
)
from fedmrn_app.plugin.comparison import is_difference, is_same
from fedmrn_app.plugin.exact import unpack_exact
from fedmrn_app.plugin.reply_form import ReplyForm, base_keys, default_key
from fedmrn_app.plugin.scales import read_exponents
from fedmrn_app.plugin.settings import (
    BESIDE,
    GRID,
    PACKED,
    RECORD,
    REFUSED,
    WITHOUT_ARRAYS,
    WITHOUT_MASKS,
    ClientTask,
    RoundContext,
)
from fedmrn_app.wire.primitives import all_finite

_LEAST_SAVED = 8  # times fewer bytes than the arrays have; where a reply saves less, a line says why
_SHORT = 20_000  # bytes of arrays that are too few for such a line

# By the arrays, how they are sent back, the form of the reply, and masks or none; with what is coded from.
Contexts = dict[tuple[int, bytes, ReplyForm, bool], tuple[RoundContext, Values]]


class Spent(NamedTuple):
    """What the payload of a reply has taken, and what it might have.

    Attributes:
        weights: number of coded weights.
        body: bits per coded weight of its body.
        left: bits per coded weight that `bits` leaves to a mask.
        least: bits per coded weight that a mask gets at least.
    """

    weights: float
    body: float
    left: float
    least: float


def read_refusal(reply: Message) -> str | None:
    """Return why a client of another version could not read its message; None for every other reply."""
    record = None if reply.has_error() else reply.content.config_records.get(RECORD)
    reason = None if record is None else record.get(REFUSED)
    return None if reason is None else one_line(str(reason))


def has_read_grid(reply: Message) -> bool:
    """Return whether a reply to arrays on the grid comes from a client that has read them: only the mod can."""
    if reply.has_error():
        return False
    return GRID in reply.content or has_payload(reply.content)


def check_answer(reply: Message) -> None:
    """Check that a client has answered with content.

    Raises:
        PayloadError: it failed.
    """
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}", code="client")


def has_payload(content: RecordDict) -> bool:
    """Return whether a reply comes from a client with the mod: it has a payload, or notes that it has no arrays."""
    records = content.config_records.values()
    return any("" in record or WITHOUT_ARRAYS in record for record in records)


def decode_payload(
    content: RecordDict, task: ClientTask, method: Method, records: Mapping[str, Values], contexts: Contexts
) -> Spent | None:
    """Replace the payloads of a reply by the arrays that they stand for, under the same keys.

    Args:
        content: of the reply.
        task: what the client was asked.
        method: of the run.
        records: the arrays that the client was sent, by the keys of their ArrayRecords.
        contexts: what server and clients know of this round; missing ones are added.

    Returns:
        What the first payload has taken; None if there is none.

    Raises:
        PayloadError: the reply is not what was asked for.
    """
    size, spent = content_bytes(content), None
    payloads = {key: cast(Mapping[str, Any], record) for key, record in content.config_records.items() if "" in record}
    content.pop(RECORD, None)  # the note of a reply without payloads
    found: dict[str, ArrayRecord] = {}
    for key, payload in payloads.items():
        beside = content.array_records.get(f"{BESIDE}{key}")
        sent = records.get(str(payload.get("of", default_key(key, records))))
        if sent is None:
            raise PayloadError("reply is coded from arrays that were not sent", code="records")
        found[key], bits = _decode_record(payload, beside, task, method, sent, contexts, size)
        spent = spent or bits
        if beside is not None:
            del content[f"{BESIDE}{key}"]
    whole = {key: found.get(key, record) for key, record in content.items()}  # in the order of the app's reply
    for key in list(content):
        del content[key]
    content.update(whole)
    return spent


def _decode_record(
    record: Mapping[str, Any],
    beside: ArrayRecord | None,
    task: ClientTask,
    method: Method,
    sent: Values,
    contexts: Contexts,
    size: int,
) -> tuple[ArrayRecord, Spent]:
    """Return the arrays of one payload, and what it has taken as `decode_payload` does.

    Args:
        record: with the payload.
        beside: the arrays that Flower sent as they are.
        task: what the client was asked.
        method: of the run.
        sent: the arrays that the client was sent.
        contexts: see `decode_payload`.
        size: bytes of the whole reply.

    Raises:
        PayloadError: the record is not what was asked for.
    """
    fields = [record.get(field, b"") for field in ("", "exact", "ways", "bounded", "kept", PACKED)]
    data, exact, named, bounded, kept, packed = fields
    if not all(isinstance(part, bytes) for part in fields):
        raise PayloadError("reply holds something else than bytes", code="records")
    form = ReplyForm.read(record, sent)
    base = form.base(sent)
    ways = checked_ways(named, base) if named else usual_ways(base)
    masked = WITHOUT_MASKS not in record
    if not masked and not method.training.learns_masks:
        raise PayloadError(f"reply was coded without masks, which {method.name} has none of", code="method")
    kind = (id(sent), ways.tobytes(), form, masked)
    if kind not in contexts:
        asked = task if masked else task.without_masks()
        start: Values = form.base(sent, ways)
        contexts[kind] = RoundContext.of(method if masked else asked.settings.build(), asked, start, ways), start
    shared, start = contexts[kind]
    if packed and not exact:
        exact = unpack_exact(packed, shared.parts.exact_size(start))
    scaled = task.even or task.checks or (masked and method.training.learns_masks)
    exponents = read_exponents(record, len(shared.parts.coded) if scaled else 0)
    replaced, upload = shared.decode(start, task.seed, data, exact, exponents, bounded, kept)
    arrays = dict(to_record(form.decoded(sent, replaced)).items())
    plain = {} if beside is None else to_values(beside)  # which finds damaged ones before the strategy does
    for name in shared.parts.beside:
        if beside is None or name not in plain:
            raise PayloadError(f"{name}: is missing beside the payload", code="records", key=name)
        arrays[name] = beside[name]
    found = ArrayRecord({name: arrays[name] for name in form.names})
    budget = parameter_count(sent) * (task.settings.bits or 0.0)
    count = max(1, shared.context.count)
    spent, left = mask_bits(budget, count, payload=size, body=len(upload.payload.body))
    return found, Spent(count, spent, left, least_mask_bits(count))


def add_rounding(content: RecordDict, exact: Values, received: Values, *, differences: bool) -> None:
    """Let the decoded arrays of a reply count from the exact arrays, and not from those on the lattice.

    The inner strategy averages whole arrays. What the lattice rounds off would otherwise be lost in each round.

    Args:
        content: of the reply, with decoded arrays.
        exact: the arrays that the strategy sent.
        received: these arrays on the lattice, as the client received them.
        differences: whether the reply's arrays are differences, to which nothing is added.
    """
    key, record = only_arrays(content)
    values = to_values(record)
    for name, value in values.items():
        if not np.issubdtype(value.dtype, np.floating) or is_same(exact[name], received[name]):
            continue
        if not differences and not is_difference(received[name], value):
            rounding = cast(NDArray[Any], exact[name]) - cast(NDArray[Any], received[name])
            values[name] = (cast(NDArray[Any], value) + rounding).astype(value.dtype)
    content[key] = to_record(values)


def check_plain(content: RecordDict, records: Mapping[str, Values]) -> None:
    """Check the plain arrays of a client without the mod.

    Raises:
        PayloadError: they have other names or shapes than those that were sent, or are not finite.
    """
    replied = {key: to_values(record) for key, record in content.array_records.items()}
    for key, base in base_keys(replied, records).items():
        found = replied[key]
        values = records.get(base or "", {})
        if base is None and (len(replied) > 1 or not any(records.values())):
            continue
        for name, after in found.items():
            before = values.get(name)
            shapes = [None if some is None else some.shape for some in (before, after)]
            single = {shapes[0], shapes[1]} <= {(), (1,)}  # Flower's mean changes counters
            if shapes[0] != shapes[1] and not single and (before is None or not may_change_length(before)):
                reason = f"{name}: was sent with the shape {shapes[0]} and came back with {shapes[1]}"
                raise PayloadError(reason, code="shape", key=name, value=shapes[1])
            if before is None or not np.issubdtype(after.dtype, np.inexact) or all_finite(after):
                continue
            if not is_same(before, after):
                raise PayloadError(f"{name}: is not finite", code="not-finite", key=name)


def add_counts(content: RecordDict, uplink: int, downlink: int, parameters: int) -> None:
    """Add the bytes of a reply and of the message to the reply's first MetricRecord, if it has one.

    Flower asks for the same metrics of all clients.
    """
    metrics = next(iter(content.metric_records.values()), None)
    if metrics is None:
        return
    metrics["uplink_bytes"], metrics["downlink_bytes"] = uplink, downlink
    metrics["uplink_bits_per_parameter"] = 8 * uplink / max(1, parameters)


def little_saved(uplink: int, records: Mapping[str, Values], contexts: Contexts) -> str | None:
    """Return why a reply takes more than an eighth of the bytes of its arrays; None if it does not, or is short anyway.

    Args:
        uplink: bytes of the reply.
        records: the arrays that its client was sent.
        contexts: how arrays of this round are sent back.
    """
    plain = sum(value.nbytes for values in records.values() for value in values.values())
    whole = {
        name: start[name].nbytes
        for shared, start in contexts.values()
        for name in (*shared.parts.exact, *shared.parts.bounded)
    }
    if uplink * _LEAST_SAVED <= plain or plain < _SHORT or sum(whole.values()) < uplink / 2:
        return None
    largest = max(whole, key=lambda name: whole[name])
    what = f"{largest} and {len(whole) - 1} more arrays are" if len(whole) > 1 else f"{largest} is"
    return (
        f"a reply takes 1/{plain / uplink:.1f} of its arrays' bytes, because {what} sent value for value, as "
        "statistics, sums, long vectors and integers are"
    )


def parameter_count(values: Values) -> int:
    """Return the number of floating-point values; complex ones count as two."""
    kinds = {"f": 1, "c": 2}
    return sum(value.size * kinds.get(value.dtype.kind, 0) for value in values.values())

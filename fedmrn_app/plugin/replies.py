"""Reads the replies of clients that trained: payloads, and the plain arrays of clients without the mod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import one_line, remote_reason
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.rate_control import least_mask_bits, mask_bits
from fedmrn_app.plugin.arrays import Values, checked_ways, only_arrays, to_record, to_values, usual_ways
from fedmrn_app.plugin.scales import read_exponents
from fedmrn_app.plugin.settings import GRID, RECORD, REFUSED, WITHOUT_MASKS, ClientTask, RoundContext

Contexts = dict[tuple[int, bytes, bool], RoundContext]  # by the arrays, the ways they are sent back, and masks or none


def read_refusal(reply: Message) -> str | None:
    """Return why a client of another version could not read its message; None for every other reply."""
    record = None if reply.has_error() else reply.content.config_records.get(RECORD)
    reason = None if record is None else record.get(REFUSED)
    return None if reason is None else one_line(str(reason))


def has_read_grid(reply: Message) -> bool:
    """Return whether a reply to arrays on the grid comes from a client that has read them: only the mod can."""
    if reply.has_error():
        return False
    payload = any(isinstance(record.get(""), bytes) for record in reply.content.config_records.values())
    return GRID in reply.content or (payload and not reply.content.array_records)


def check_answer(reply: Message) -> None:
    """Check that a client has answered with content.

    Raises:
        PayloadError: it failed.
    """
    if reply.has_error():
        raise PayloadError(f"failed with: {remote_reason(str(reply.error.reason))}", code="client")


def decode_payload(
    content: RecordDict, task: ClientTask, method: Method, values: Values, contexts: Contexts
) -> tuple[float, float, float] | None:
    """Replace the payload of a reply by the arrays that it stands for, under the same key.

    Args:
        content: of the reply.
        task: what the client was asked.
        method: of the run.
        values: the arrays that the client was sent.
        contexts: what server and clients know of this round; a missing one is added.

    Returns:
        Bits per coded weight: those of the payload's body, those that `bits` leaves to it, and those that it gets at
        least; None without masks.

    Raises:
        PayloadError: the reply is not what was asked for.
    """
    size = content_bytes(content)
    key, data, exact, named = _read_payload(content)
    ways = checked_ways(named, values) if named else usual_ways(values)
    record = cast(Mapping[str, Any], content[key])
    masked = WITHOUT_MASKS not in record
    if not masked and not method.training.learns_masks:
        raise PayloadError(f"reply was coded without masks, which {method.name} has none of", code="method")
    kind = (id(values), ways.tobytes(), masked)
    if kind not in contexts:
        asked = task if masked else task.without_masks()
        contexts[kind] = RoundContext.of(method if masked else asked.settings.build(), asked, values, ways)
    shared = contexts[kind]
    exponents = read_exponents(record, len(shared.parts.coded) if masked and method.training.learns_masks else 0)
    replaced, upload = shared.decode(values, task.seed, data, exact, exponents)
    del content[key]
    content[key] = to_record(replaced)
    if not masked:
        return None
    budget = parameter_count(values) * (task.settings.bits or 0.0)
    count = max(1, shared.context.count)
    return *mask_bits(budget, count, payload=size, body=len(upload.payload.body)), least_mask_bits(count)


def add_rounding(content: RecordDict, exact: Values, received: Values) -> None:
    """Let the decoded arrays of a reply count from the exact arrays, and not from those on the lattice.

    The inner strategy averages whole arrays. What the lattice rounds off would otherwise be lost in each round.

    Args:
        content: of the reply, with decoded arrays.
        exact: the arrays that the strategy sent.
        received: these arrays on the lattice, as the client received them.
    """
    key, record = only_arrays(content)
    values = to_values(record)
    for name, value in values.items():
        if np.issubdtype(value.dtype, np.floating) and not np.array_equal(exact[name], received[name]):
            rounding = cast(NDArray[Any], exact[name]) - cast(NDArray[Any], received[name])
            values[name] = (cast(NDArray[Any], value) + rounding).astype(value.dtype)
    content[key] = to_record(values)


def check_plain(content: RecordDict, values: Values) -> None:
    """Check the plain arrays of a client without the mod.

    Raises:
        PayloadError: they have other names or shapes than those that were sent, or are not finite.
        RunError: there is not exactly one ArrayRecord.
    """
    found = to_values(only_arrays(content)[1])
    for name in dict.fromkeys((*values, *found)):
        shapes = [some[name].shape if name in some else None for some in (values, found)]
        if shapes[0] != shapes[1] and not {shapes[0], shapes[1]} <= {(), (1,)}:  # Flower's mean changes counters
            reason = f"{name}: was sent with the shape {shapes[0]} and came back with {shapes[1]}"
            raise PayloadError(reason, code="shape", key=name, value=shapes[1])
        if not np.isfinite(cast(NDArray[Any], found[name])).all():
            raise PayloadError(f"{name}: is not finite", code="not-finite", key=name)
    if len(content.metric_records) != 1:
        raise PayloadError("reply does not hold exactly one MetricRecord", code="records")


def add_counts(content: RecordDict, uplink: int, downlink: int, values: Values) -> None:
    """Add the bytes of a reply and of the message to the reply's metrics, which must be the same for all clients."""
    metrics = next(iter(content.metric_records.values()))
    metrics["uplink_bytes"], metrics["downlink_bytes"] = uplink, downlink
    metrics["uplink_bits_per_parameter"] = 8 * uplink / max(1, parameter_count(values))


def parameter_count(values: Values) -> int:
    """Return the number of floating-point values."""
    return sum(value.size for value in values.values() if np.issubdtype(value.dtype, np.floating))


def _read_payload(content: RecordDict) -> tuple[str, bytes, bytes, bytes]:
    """Return the payload's key in a reply, the payload, the tensors that are sent exactly, and the ways of sending.

    Raises:
        PayloadError: the reply does not hold these and metrics.
    """
    keys = [key for key, record in content.config_records.items() if isinstance(record.get(""), bytes)]
    if len(keys) != 1 or len(content.metric_records) != 1:
        raise PayloadError("reply does not hold exactly one payload and one MetricRecord", code="records")
    record = cast(Mapping[str, Any], content[keys[0]])
    data, exact, named = (record.get(field, b"") for field in ("", "exact", "ways"))
    if not all(isinstance(part, bytes) for part in (data, exact, named)):
        raise PayloadError("reply holds something else than bytes", code="records")
    return keys[0], data, exact, named

"""The client's half of the plug-in: a Flower mod that replaces the arrays of a training reply by a short payload."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedmrn_app.errors import RunError
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.flower.messages import lost_content
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.method import Method
from fedmrn_app.plugin.arrays import CODED, DENSE, TIED, UNCHANGED, Values, find_tied, to_values, usual_ways
from fedmrn_app.plugin.downlink import GRID, read_arrays
from fedmrn_app.plugin.settings import RECORD, ClientTask, Shared, learns_masks
from fedmrn_app.seeds import mix

_RESIDUAL = "fedmrn-residual"  # in the client's state, with error feedback


class Learned:
    """What an optimiser of ours gives in the end."""

    names: tuple[str, ...]  # of the tensors whose updates were learned

    def update(self) -> Float32Array:
        """The updates of these tensors as `Parts.vector` has them, float32 (d,).

        Raises:
            RunError: the training ended before or after the number of steps that it was to take.
        """
        raise NotImplementedError


@dataclass
class ClientRound:
    """One client's training in one round, from the message to the reply.

    Attributes:
        task: what the server asks.
        method: of the run.
        key: of the ArrayRecord in the message.
        values: what was sent.
        learned: what an optimiser of ours trains, see `plugin/optimizer.py`; None where none does.
    """

    task: ClientTask
    method: Method
    key: str
    values: Values
    learned: Learned | None = None

    @property
    def private_seed(self) -> int:
        """Of the client's own randomness."""
        return mix(self.task.seed ^ 1)


_rounds: dict[str, ClientRound] = {}  # in training now, by the message that asked for it
_lock = threading.Lock()


def round_of(message: Message) -> ClientRound:
    """The round that a message began.

    Raises:
        RunError: the mod has not seen the message.
    """
    with _lock:
        found = _rounds.get(message.metadata.message_id)
    if found is None:
        raise RunError(
            "this message asks for no compression; say ClientApp(mods=[compress_uplink]) here, and Compressed(...) "
            "around the server's strategy"
        )
    return found


def compress_uplink(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Flower mod: send what the app trained as a short payload, in the way that `Compressed` on the server asks for.

    Nothing else in the app changes::

        app = ClientApp(mods=[compress_uplink])

    Messages that do not ask for it pass as they are, and so do replies that are errors.

    Raises:
        RunError: the reply has no arrays, or others than were sent, or the server asks for learned masks and no
            optimiser learned any.
    """
    if message.has_content() and GRID in message.content and not read_arrays(message.content, context):
        return Message(lost_content("version"), reply_to=message)
    record = message.content.config_records.get(RECORD) if message.has_content() else None
    if record is None:
        return call_next(message, context)
    task = ClientTask.read(record)
    key = only_arrays(message.content)
    opened = ClientRound(task, task.terms.build(), key, to_values(cast(ArrayRecord, message.content[key])))
    del message.content[RECORD]
    with _lock:
        _rounds[message.metadata.message_id] = opened
    try:
        reply = call_next(message, context)
        if reply.has_content():
            _compress(reply, opened, context)
    finally:
        with _lock:
            del _rounds[message.metadata.message_id]
    return reply


def only_arrays(content: RecordDict) -> str:
    """The key of the only ArrayRecord in a message.

    Raises:
        RunError: there is none, or several.
    """
    keys = list(content.array_records)
    if len(keys) != 1:
        raise RunError(f"a message holds {len(keys)} ArrayRecords; one is needed, the model's arrays")
    return keys[0]


def _compress(reply: Message, opened: ClientRound, context: Context) -> None:
    """Replace the arrays of a reply by the record that the server reads, under the same key."""
    key = only_arrays(reply.content)
    trained = _as_sent(opened.values, to_values(cast(ArrayRecord, reply.content[key])))
    ways = _ways(opened, trained)
    method = opened.method
    shared = Shared.of(method, opened.task, opened.values, ways)
    parts, seed = shared.parts, opened.task.seed
    x = opened.learned.update() if opened.learned else parts.vector(trained) - parts.vector(opened.values)
    record = context.state.array_records.get(_RESIDUAL)
    before = None if record is None else record["x"].numpy()
    before = before if before is not None and before.size == x.size else None  # other tensors may have changed
    body, residual = method.encode(x, before, shared.known, seed, opened.private_seed)
    if residual is not None:
        context.state[_RESIDUAL] = ArrayRecord({"x": Array(residual)})
    header = header_of(shared.protocol, seed, 1, shared.known.count)
    payload = write_upload(shared.protocol, header, Update(body, parts.dense_vector(trained)), shared.dense)
    answer = ConfigRecord({"": payload})
    if not np.array_equal(ways, usual_ways(opened.values)):
        answer["ways"] = ways.tobytes()
    if parts.exact:
        answer["exact"] = parts.exact_bytes(trained)
    del reply.content[key]
    reply.content[key] = answer


def _ways(opened: ClientRound, trained: Values) -> NDArray[np.uint8]:
    """How each tensor is sent: what has not changed is not, and what no mask was learned for goes densely."""
    ways = usual_ways(opened.values)
    if learns_masks(opened.method) and opened.learned is None:
        raise RunError(
            f"the server asks for {opened.method.name}, whose masks are learned; train with MaskedSGD(model, message, "
            "...) or learn_masks(optimizer, model, message, ...)"
        )
    for number, (name, before) in enumerate(opened.values.items()):
        if opened.learned is not None and ways[number] == CODED:
            if name in opened.learned.names:
                continue
            ways[number] = TIED if _is_tied(name, opened, trained) else DENSE
        if ways[number] in (CODED, DENSE) and np.array_equal(before, trained[name]):
            ways[number] = UNCHANGED
    return ways


def _is_tied(name: str, opened: ClientRound, trained: Values) -> bool:
    assert opened.learned is not None
    other = find_tied(name, opened.values, opened.learned.names)
    return other is not None and np.array_equal(trained[other], trained[name])


def _as_sent(sent: Values, trained: Values) -> Values:
    """The trained tensors in the types and shapes that were sent: Flower's mean changes those of counters.

    Raises:
        RunError: they are others.
    """
    if list(sent) != list(trained):
        other = sorted(set(sent) ^ set(trained))
        raise RunError(f"the reply has other arrays than were sent: {', '.join(other[:3]) or 'in another order'}")
    for name, before in sent.items():
        if before.size != trained[name].size or (before.shape != trained[name].shape and before.size > 1):
            raise RunError(f"{name}: was sent with the shape {before.shape} and came back with {trained[name].shape}")
    return {name: trained[name].astype(before.dtype).reshape(before.shape) for name, before in sent.items()}

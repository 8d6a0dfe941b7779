"""One client's training in one round: what the mod, the app's optimizer and a secure sum know of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from flwr.app import Message, RecordDict

from fedmrn_app.errors import RunError
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.method import Method
from fedmrn_app.plugin.arrays import Values
from fedmrn_app.plugin.settings import ClientTask
from fedmrn_app.seeds import private_seed

if TYPE_CHECKING:
    from fedmrn_app.plugin.scales import OwnScales

OnDifference = Literal["error", "eden"]
Alpha = Literal["auto"] | None  # of an optimizer, see `MaskedSGD`
CLIPPING_NORM = "clipping_norm"  # what Flower's strategies that clip on clients call their bound in a message


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
        values: the arrays that were sent; of several ArrayRecords those of the first.
        bound: largest norm of an update that the server asks for; None for any.
        learned: what an optimizer learns as masks; None for other trainings.
        client: number of the client in a secure sum; None without.
        records: the arrays of all ArrayRecords by their keys.
        further: whether `values` are of another ArrayRecord than the first.
        statistics: shapes of the arrays of statistics in all ArrayRecords of the reply; empty if there is only one.
    """

    task: ClientTask
    method: Method
    values: Values
    bound: float | None = None
    learned: Learned | None = None
    client: int | None = None
    records: Mapping[str, Values] = field(default_factory=dict)
    further: bool = False
    statistics: Collection[tuple[int, ...]] = ()

    def without_masks(self, values: Values, *, further: bool = False) -> ClientRound:
        """Return the round of arrays for which no masks are learned."""
        task = self.task.without_masks() if self.method.training.learns_masks else self.task
        return replace(self, task=task, method=task.settings.build(), values=values, learned=None, further=further)

    @property
    def private_seed(self) -> int:
        """The 64-bit seed of the client's own randomness."""
        task = self.task
        if not task.server_round:  # the server is older and tells neither round nor client
            return private_seed(task.seed >> 8, 0, self.client or 0)
        return private_seed(task.settings.seed, task.server_round, task.client)


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


def read_bound(content: RecordDict) -> float | None:
    """Return the norm to which Flower's strategies ask clients to clip; None if they do not."""
    records = cast(Sequence[Mapping[str, Any]], list(content.config_records.values()))
    bounds = [float(record[CLIPPING_NORM]) for record in records if CLIPPING_NORM in record]
    return min(bounds) if bounds else None


def no_masks(method: Method) -> RunError:
    """Return the error of a client that is asked for learned masks and has none."""
    return RunError(
        f"the server asks for {method.name}, whose masks are learned; train with MaskedSGD(model, message, ...) or "
        "learn_masks(optimizer, model, message, ...)",
        code="no-masks",
        value=method.name,
    )


def in_sent_types(sent: Values, trained: Values) -> Values:
    """Return the trained tensors in the dtypes and shapes that were sent; Flower's mean changes those of counters.

    Raises:
        RunError: the names or shapes are not those that were sent, or integers were sent and came back with fractions.
    """
    if list(sent) != list(trained):
        other = ", ".join(sorted(set(sent) ^ set(trained))[:3]) or "in another order"
        raise RunError(f"the reply has other arrays than were sent: {other}", code="names", value=other)
    for name, before in sent.items():
        if before.size != trained[name].size or (before.shape != trained[name].shape and before.size > 1):
            reason = f"{name}: was sent with the shape {before.shape} and came back with {trained[name].shape}"
            raise RunError(reason, code="shape", key=name, value=trained[name].shape)
    converted = {name: trained[name].astype(before.dtype).reshape(before.shape) for name, before in sent.items()}
    for name, after in trained.items():
        whole = not np.issubdtype(sent[name].dtype, np.inexact) and np.issubdtype(after.dtype, np.inexact)
        if whole and not np.array_equal(converted[name].reshape(after.shape), after):
            reason = f"{name}: was sent as {sent[name].dtype} and came back as {after.dtype} with fractions"
            raise RunError(f"{reason}; send it as {after.dtype} from the first round on", code="dtype", key=name)
    return converted

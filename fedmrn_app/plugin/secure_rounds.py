"""The server's half of secure rounds: four phases behind one call of the strategy or loop, whose replies are means.

Clients that answer the first two phases are sent the arrays in the third. A client without the mod has no answer to
the first one, so it is never asked to train, and its arrays are never sent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.exchange.channel import Answer
from fedmrn_app.exchange.messages import Lost
from fedmrn_app.exchange.requests import Request
from fedmrn_app.exchange.secure_rounds import PhaseMessages, PhaseTimes, Send, ask_through
from fedmrn_app.methods.method import Method
from fedmrn_app.plugin.arrays import only_arrays, to_record
from fedmrn_app.plugin.fixed_point import Steps
from fedmrn_app.plugin.replies import add_counts, parameter_count
from fedmrn_app.plugin.request import ArraysRequest
from fedmrn_app.plugin.secure_sum import Mean, SumLayout, secure_content, sum_binding
from fedmrn_app.plugin.settings import DEFAULT_DENSE_BITS, RECORD, RoundContext
from fedmrn_app.secure.exchange import Phase, collect
from fedmrn_app.secure.graph import MIN_CLIENTS
from fedmrn_app.secure.server import SecureServer

WEIGHTED_BY = "num-examples"  # Flower's default name of the weight in a reply's metrics
_SINGLE = (  # Flower's strategies that compare replies, or change each one by itself
    "Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum", "QFedAvg",
)  # fmt: skip
_log = logging.getLogger("flwr")


class SecureSums:
    """Runs secure rounds.

    Attributes:
        weighted_by: name of the weight in the metrics of a reply; it is 1 for all clients.
    """

    def __init__(self, method: Method, bits: int, bound: float) -> None:
        """Take the method of the run, and how changes are rounded, see `Steps`."""
        self.weighted_by = WEIGHTED_BY
        self._method, self._steps, self._told_cut = method, Steps(bits, bound), False

    @staticmethod
    def check_adds_up(strategy: Strategy) -> None:
        """Check that a strategy, and those that it wraps, need no more than the mean of the replies.

        Raises:
            ConfigError: one is known to need single replies.
        """
        inner: Any = strategy
        while isinstance(inner, Strategy):
            for kind in type(inner).__mro__:
                if kind.__name__ in _SINGLE or kind.__name__.startswith("DifferentialPrivacy"):
                    reason = (
                        f"secure=True: {type(inner).__name__} needs each client's own reply, and a secure sum hides it"
                    )
                    way_out = "leave secure out, or take FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam or FedYogi"
                    raise ConfigError(f"{reason}; {way_out}", code="secure", key="strategy", value=type(inner).__name__)
            inner = getattr(inner, "strategy", None)

    def weigh_as(self, strategy: Strategy) -> None:
        """Take the name of the weight in a reply's metrics that a strategy, or the one that it wraps, has."""
        inner: Any = strategy
        while isinstance(inner, Strategy):
            if isinstance(name := getattr(inner, "weighted_by_key", None), str):
                self.weighted_by = name
                return
            inner = getattr(inner, "strategy", None)

    def run(
        self, requests: Sequence[ArraysRequest], send: Send, timeout: float | None
    ) -> tuple[list[Message | PayloadError], str]:
        """Run a round.

        Args:
            requests: what clients are asked.
            send: sends messages and returns the replies that arrive within so many seconds.
            timeout: seconds for the whole round; None for any.

        Returns:
            The reply to each request, or why its client was left out; and why there is no sum, empty if there is one.

        Raises:
            RunError: fewer than three clients are asked, or they are sent different arrays or settings.
        """
        if len(requests) < MIN_CLIENTS:
            reason = f"secure=True: {len(requests)} clients are asked in a round, and {MIN_CLIENTS} are needed"
            way_out = "let the strategy ask more, for example with min_train_nodes"
            raise RunError(f"{reason}; {way_out}", code="secure-threshold", value=len(requests))
        layout, number, clients = self._layout(requests), requests[0].opened.number, range(len(requests))
        binding = self._binding(requests)
        phases = PhaseMessages(partial(self._send, requests, send, PhaseTimes(timeout)))
        try:
            server = SecureServer(number, clients, layout.fields, binding=binding)
            collect(server, clients, phases.ask, phases.failed)
            used, totals = server.unmask()
            mean = layout.mean(totals, len(used))
        except RunError as error:
            named = phases.reasons(lambda client: f"node {requests[client].node}")
            reason = f"{error} ({named})" if named else str(error)
            reason = reason if reason.startswith(f"round {number}") else f"round {number}: {reason}"
            return [phases.failed.get(client, PayloadError(reason, code=error.code)) for client in clients], reason
        if mean.clipped and not self._told_cut:
            self._told_cut = True
            _log.warning(
                "round %s: %s values of %s clients together changed by more than secure_bound=%g and were cut to it; "
                "say a larger secure_bound. The logs of the clients name the tensors and a bound that holds them, and "
                "the metric clipped_values counts such values in later rounds",
                number, mean.clipped, len(used), self._steps.bound,
            )  # fmt: skip
        replies = self._replies(requests, layout, phases, used, mean)
        lonely = PayloadError("too few of its neighbours in the secure sum took part", code="secure-threshold")
        return [replies.get(client) or phases.failed.get(client, lonely) for client in clients], ""

    def _binding(self, requests: Sequence[ArraysRequest]) -> bytes:
        """Return the hash of what all clients of a round are sent.

        Raises:
            RunError: they are sent different arrays or settings.
        """
        masks, found = self._method.training.learns_masks, set()
        for request in requests:
            found.add(sum_binding(PhaseRequest(request, "masked", b"", self._steps).content(), masks))
            if len(found) > 1:
                reason = f"node {request.node} is sent other arrays or settings than node {requests[0].node}"
                way_out = "a secure sum needs the same for all clients of a round, so that none can be singled out"
                raise RunError(f"secure=True: {reason}; {way_out}", code="secure", value=request.node)
        return found.pop()

    def _send(
        self,
        requests: Sequence[ArraysRequest],
        send: Send,
        times: PhaseTimes,
        phase: Phase,
        messages: Mapping[int, bytes],
    ) -> list[Answer]:
        """Send the messages of a phase; that of the first one is the strategy's, so that its id is known."""
        asked = [PhaseRequest(requests[client], phase, data, self._steps) for client, data in messages.items()]
        firsts = [one.arrays.first if phase == "keys" else None for one in asked]
        answers = ask_through(send, asked, firsts, times.left(phase))
        return [_with_way_out(answer) for answer in answers] if phase == "keys" else answers

    def _layout(self, requests: Sequence[ArraysRequest]) -> SumLayout:
        """Return the layout of a round's sum.

        Raises:
            RunError: clients were sent arrays of different names, shapes or types.
        """
        kinds = [{name: (v.shape, v.dtype) for name, v in request.exact.items()} for request in requests]
        for request, kind in zip(requests, kinds, strict=True):
            if list(kind.items()) != list(kinds[0].items()):
                reason = f"nodes {requests[0].node} and {request.node} are sent arrays of other names, shapes or types"
                raise RunError(f"secure=True: {reason}, which cannot be added up", code="secure", value=request.node)
        return SumLayout.of(requests[0].exact, self._steps, masks=self._method.training.learns_masks)

    def _replies(
        self,
        requests: Sequence[ArraysRequest],
        layout: SumLayout,
        phases: PhaseMessages,
        used: Sequence[int],
        mean: Mean,
    ) -> dict[int, Message]:
        """Return the reply of each client in the sum: what it was sent plus the mean change."""
        found: dict[int, Message] = {}
        task, first = requests[0].task, requests[0].exact
        assert task is not None
        update = mean.masks
        if self._method.training.learns_masks:
            update = RoundContext.of(self._method, task, first, layout.ways).mean_update(update, task.seed)
        records: dict[int, Any] = {}
        for client in used:
            request = requests[client]
            key, sent = only_arrays(request.given)
            if id(sent) not in records:
                records[id(sent)] = to_record(layout.moved(request.exact, mean, update))
            metrics = MetricRecord({self.weighted_by: 1, "clipped_values": mean.clipped / len(used)})
            content = RecordDict({key: records[id(sent)], "metrics": metrics})
            add_counts(content, phases.uplink[client], phases.downlink[client], parameter_count(request.exact))
            found[client] = Message(content, reply_to=request.first)
        return found


class PhaseRequest(Request):
    """Sends a client the message of a phase, with the arrays in the phase in which it trains."""

    def __init__(self, arrays: ArraysRequest, phase: Phase, data: bytes, steps: Steps) -> None:
        self.client, self.node, self.group, self.kind = arrays.client, arrays.node, arrays.group, arrays.kind
        self.arrays, self._phase, self._data, self._steps = arrays, phase, data, steps

    def content(self, lost: Lost | None = None) -> RecordDict:
        """Return the content of the message."""
        task = self.arrays.task
        if self._phase != "masked" or task is None:
            return secure_content(RecordDict(), self._data)
        content = secure_content(RecordDict(dict(self.arrays.given)), self._data, self._steps)
        content[RECORD] = task.record()
        return content


def _with_way_out(answer: Answer) -> Answer:
    """Return an answer of the first phase; a client that failed may have no mod."""
    error = answer.payload
    if not isinstance(error, PayloadError) or error.code == "timeout":
        return answer
    reason = f"{error}; in secure rounds every ClientApp needs mods=[compress_uplink], of this fedmrn"
    return replace(answer, payload=PayloadError(reason, code=error.code))


def check_options(
    method: str, *, bits: float | None, alpha: object, dense_bits: int | None, downlink: str, options: Mapping[str, Any]
) -> None:
    """Check that options of the plug-in go with secure sums.

    Raises:
        ConfigError: one does not.
    """
    wrong = {
        "bits": (bits, bits is None, "the server does not see how long one client's masks are"),
        "alpha": (alpha, alpha != "auto", "clients that set the scale of the noise by themselves mask other noise"),
        "dense_bits": (
            dense_bits,
            dense_bits in (None, DEFAULT_DENSE_BITS),
            "a sum holds fixed-point numbers, see secure_bits",
        ),
        "downlink": (downlink, downlink == "float32", "secure rounds send the arrays as they are"),
        "options": (dict(options), method != "fedavg" or not options, "fedavg has no options in a secure sum"),
    }
    for key, (value, fits, reason) in wrong.items():
        if not fits:
            raise ConfigError(
                f"{key}={value}: {reason}; leave it out beside secure=True", code="conflict", key=key, value=value
            )

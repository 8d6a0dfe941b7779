"""What the server keeps from round to round, and what it asks of each client: for any strategy or loop.

messages -> Exchange.open -> requests, with other contents -> clients -> Exchange.read -> replies with arrays
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from flwr.app import Error, Message, RecordDict

from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.exchange.requests import Asked
from fedmrn_app.federation.budget import Schedule
from fedmrn_app.methods.method import Method
from fedmrn_app.noise import Distribution
from fedmrn_app.plugin.arrays import only_arrays, to_values
from fedmrn_app.plugin.fidelity import bits_of_round
from fedmrn_app.plugin.replies import (
    Spent,
    add_counts,
    add_rounding,
    check_plain,
    decode_payload,
    has_payload,
    little_saved,
    parameter_count,
)
from fedmrn_app.plugin.request import ArraysRequest, Fleet, OpenMessages
from fedmrn_app.plugin.settings import (
    DEFAULT_ALPHA,
    GRID,
    SECURE_BITS,
    SECURE_BOUND,
    ClientTask,
    PluginSettings,
    check_own_scales,
    sets_own_scales,
    usual_dense_bits,
    usual_options,
)
from fedmrn_app.validation import Positive, Range

if TYPE_CHECKING:
    from fedmrn_app.exchange.secure_rounds import Send
    from fedmrn_app.plugin.downlink import LatticeSender
    from fedmrn_app.plugin.run_budget import RunBudget
    from fedmrn_app.plugin.secure_rounds import SecureSums

AskedArrays = Asked[ArraysRequest]
Reply = Literal["auto", "difference"]
_MASKS = ("fedmrn", "fedmrns")
_LEFT_OUT = 3  # Flower's code of an error in the ClientApp
_log = logging.getLogger("flwr")


class Exchange:
    """The compression of a run's messages, see `plugin/options.py`, which checks the arguments.

    Raises:
        ConfigError: the method or an option does not work on an app's arrays, or `state` is not one.
    """

    _told_least = _told_most = _told_nothing = _told_little = False  # which lines the log has had
    _only = False  # whether the run has one round

    def __init__(
        self,
        method: str,
        *,
        bits: Annotated[float, Range(above=0, most=32)] | None = None,
        noise: Distribution = "uniform",
        alpha: float | Literal["auto"] | None = None,
        dense_bits: int | None = None,
        seed: Annotated[int, Range(least=0, below=1 << 56)] = 0,
        downlink: str = "float32",
        step: Positive | None = None,
        options: Mapping[str, Any] | None = None,
        plain_replies: bool = True,
        max_failed_rounds: Annotated[int, Range(least=0)] | None = 0,
        reply: Reply = "auto",
        budget: Annotated[float, Range(above=0, most=32)] | None = None,
        schedule: Schedule = "auto",
        state: Mapping[str, Any] | None = None,
        secure: bool = False,
        secure_bits: Annotated[int, Range(least=8, most=32)] = SECURE_BITS,
        secure_bound: Positive = SECURE_BOUND,
        even: bool = False,
        single: bool = False,
    ) -> None:
        if alpha == "auto" and bits is not None:
            reason = f"alpha=auto: the server sets the scale of the noise so that replies take bits={bits:g}"
            raise ConfigError(f"{reason}; leave one of the two out", code="conflict", key="alpha", value=alpha)
        options = usual_options(method, options or {}, secure=secure)
        more: Any = {"bits": bits, "alpha": alpha, "secure": secure, "reply": reply, "options": options}
        self.budget = _run_budget(method, budget, schedule, **more)
        bits = budget if self.budget is not None and method in _MASKS else bits
        if secure:
            from fedmrn_app.plugin.secure_rounds import SecureSums, check_options  # few runs add up in secret

            check_options(
                method,
                bits=bits,
                alpha=alpha or DEFAULT_ALPHA,
                dense_bits=dense_bits,
                downlink=downlink,
                options=options,
            )
        elif (secure_bits, secure_bound) != (SECURE_BITS, SECURE_BOUND):
            reason = "secure_bits and secure_bound: are used with secure=True only"
            raise ConfigError(f"{reason}; leave them out, or say secure=True", code="unused", key="secure_bits")
        self.settings = PluginSettings(
            method=method, options=options, distribution=noise, bits=bits, seed=seed,
            dense_bits=usual_dense_bits(method) if dense_bits is None else dense_bits,
            alpha=DEFAULT_ALPHA if alpha in ("auto", None) else float(alpha),
        )  # fmt: skip
        self._method = self.settings.build(secure=secure)
        self._even, self._single, self._differences = even, single, reply == "difference"
        self.sums: SecureSums | None = None
        if secure:
            self.sums = SecureSums(self._method, secure_bits, secure_bound)
        if alpha is None and bits is None and not secure and sets_own_scales(self._method):
            alpha = "auto"
        if alpha == "auto" and self.has_noise:
            check_own_scales(self._method)
        # None where no masks are learned
        self._own_scales = alpha == "auto" if self._method.training.learns_masks else None
        self._control = self._method.rate_control
        self._rate = None if self._control is None else self._control.first(self._control.bits)
        self._sender: LatticeSender | None = None
        if downlink != "float32":
            from fedmrn_app.plugin.downlink import LatticeSender  # by default, arrays are sent as they are

            self._sender = LatticeSender(downlink, step)
        self._fleet, self._max_failed = Fleet(sender=self._sender, plain_replies=plain_replies), max_failed_rounds
        self._last: OpenMessages | None = None  # whose bits the rate control has not seen
        self._number = self._failed = 0
        self._run = secrets.token_hex(8) if self._method.error_feedback else None
        if state is not None:
            self._restore(state)

    @property
    def has_noise(self) -> bool:
        """Whether the method masks noise, so that its scale and its distribution matter."""
        return hasattr(self._method.codec, "noise")

    def __str__(self) -> str:
        """Return the settings that have an effect, for the log."""
        settings, words = self.settings, [self.settings.method]
        words += ["the error of each tensor"] if self._even else []
        words += [f"{name}={value}" for name, value in settings.options.items()]
        if self.has_noise:
            alpha = "auto" if self._own_scales else f"{settings.alpha:g}"
            words += [f"{settings.distribution} noise", f"alpha={alpha}"]
            words += [] if settings.bits is None or self.budget is not None else [f"bits={settings.bits:g}"]
        if self.budget is not None:
            words += [f"budget={self.budget.bits:g}", f"schedule={self.budget.schedule}"]
        return ", ".join([*words, f"dense_bits={settings.dense_bits}", f"seed={settings.seed}"])

    def state(self) -> dict[str, Any]:
        """Return what a later run needs to go on, in a form that JSON can hold."""
        self._note_rate()
        rate = None if self._rate is None else [None if math.isnan(x) else float(x) for x in self._rate]
        found = {"method": self.settings.method, "round": self._number, "rate": rate, "run": self._run}
        return found if self.budget is None else {**found, "budget": self.budget.to_list()}

    def plan(self, rounds: int) -> None:
        """Say how many rounds are to come, over which a budget is divided."""
        self._only = rounds == 1 and self._number == 0
        if self.budget is not None:
            self.budget.rounds = self._number + rounds

    def open(self, messages: Sequence[Message]) -> list[AskedArrays]:
        """Change the contents of messages that are to be compressed, and return what their clients are asked.

        The contents of a secure round are changed by `sum_up`.

        Raises:
            ConfigError: clients are sent different arrays on a grid.
            RunError: a message of a secure round has no arrays, or several ArrayRecords.
        """
        kinds = {id(message): message.metadata.message_type.split(".")[0] for message in messages}
        trained = [message for message in messages if kinds[id(message)] == "train"]
        evaluated = [message for message in messages if self._sender and kinds[id(message)] == "evaluate"]
        if trained:
            self._note_rate()
            self._number += 1
        settings, method = self._of_round(trained)
        opened = OpenMessages(number=self._number, method=method, waiting=len(trained))
        scale = self._scale(trained)
        requests = []
        for client, message in enumerate(sorted(trained, key=lambda message: message.metadata.dst_node_id)):
            seed = method.client_seed(settings.seed, self._number, client)
            task = ClientTask(
                settings, seed, scale, self._own_scales, self._number, client, run=self._run, even=self._even,
                differences=self._differences,
            )  # fmt: skip
            requests.append(ArraysRequest(client, message, opened, task, self._fleet))
        requests += [
            ArraysRequest(client, message, opened, None, self._fleet) for client, message in enumerate(evaluated)
        ]
        if trained:
            self._last = opened
        if self._sender is not None and (first := next((one for one in requests if one.on_grid), None)) is not None:
            opened.lattice = self._sender.open(only_arrays(first.given)[1])
        asked = [Asked(request) for request in requests]
        for one in asked if self.sums is None else ():
            one.next_message(one.request.first)
        return asked

    def read(self, asked: AskedArrays, reply: Message | None, *, late: bool = False) -> Message | None:
        """Return the reply to a request with the arrays that it stands for, or an error that says why it has none.

        Args:
            asked: one of those that `open` returned.
            reply: to its last message; None if there is none in time.
            late: whether there is no time for another message.

        Returns:
            None if the client is to be sent another message.

        Raises:
            RunError: all clients of this round have failed, and of too many before.
        """
        request = asked.request
        try:
            if reply is None:
                raise PayloadError("no reply in time", code="timeout")
            asked.count(reply)
            if asked.asks_again(reply):
                if not late:
                    return None
                raise PayloadError("no time for the message that it needs", code="timeout")
            return self._accept(asked, reply)
        except (PayloadError, RunError) as error:
            if self._sender is not None and request.on_grid and reply is not None:
                self._sender.forget(request.node)  # its app may have lost the mod
            left_out = self._leave_out(request, error)
            return reply if reply is not None and reply.has_error() and asked.sent == 1 else left_out

    def sum_up(self, asked: Sequence[AskedArrays], send: Send, timeout: float | None) -> list[Message]:
        """Run a secure round, and return the replies, whose arrays are means, and errors of clients that are left out.

        Args:
            asked: what `open` returned.
            send: sends messages and returns the replies that arrive within so many seconds.
            timeout: seconds for the whole round; None for any.

        Raises:
            RunError: there is no sum, in more rounds in a row than `max_failed_rounds`.
        """
        assert self.sums is not None
        requests = [one.request for one in asked]
        results, requests[0].opened.no_sum = self.sums.run(requests, send, timeout)
        replies = []
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Message):
                self._count(request, None)
            replies.append(result if isinstance(result, Message) else self._leave_out(request, result))
        return replies

    def _leave_out(self, request: ArraysRequest, error: PayloadError | RunError) -> Message:
        """Log and count a client that is left out, and return the error that the strategy or loop is given."""
        _log.warning("round %s: node %s left out: %s", request.opened.number, request.node, error)
        self._count(request, f"node {request.node}: {error}")
        return Message(Error(_LEFT_OUT, str(error)), reply_to=request.first)

    def _accept(self, asked: AskedArrays, reply: Message) -> Message:
        """Return a final reply with arrays.

        Raises:
            PayloadError, RunError: why it cannot be used.
        """
        request, content = asked.request, reply.content
        content.pop(GRID, None)
        if request.task is not None:
            coded = has_payload(content)
            if coded:
                spent = decode_payload(
                    content, request.task, request.opened.method, request.records, request.opened.contexts
                )
                if request.on_grid:
                    add_rounding(content, request.exact, request.values, differences=self._differences)
                request.opened.spent += [] if spent is None else [spent]
                self._tell_if_little_is_saved(request, asked.uplink_bytes)
                if self.budget is not None:
                    replied = {key: to_values(record) for key, record in content.array_records.items()}
                    self.budget.note(asked.uplink_bytes, request.records, replied)
            else:
                self._accept_plain(request, content)
            parameters = sum(parameter_count(values) for values in request.records.values())
            add_counts(content, asked.uplink_bytes, asked.downlink_bytes, parameters)
            self._tell_if_nothing_is_coded(request, coded, parameters)
        if request.on_grid and self._sender is not None and request.opened.lattice is not None:
            self._sender.note(request.opened.lattice, request.node)
        elif asked.sent > 1:
            self._fleet.off_grid.add(request.node)
        self._count(request, None)
        return reply if asked.sent == 1 else Message(content, reply_to=request.first)

    def _tell_if_little_is_saved(self, request: ArraysRequest, uplink: int) -> None:
        if self._told_little or self.settings.method == "fedavg":
            return
        if reason := little_saved(uplink, request.records, request.opened.contexts):
            self._told_little = True
            _log.warning("round %s: %s", request.opened.number, reason)

    def _tell_if_nothing_is_coded(self, request: ArraysRequest, coded: bool, parameters: int) -> None:
        if coded and not parameters and not self._told_nothing:
            self._told_nothing = True
            _log.warning(
                "round %s: node %s was sent no floating-point numbers, so its reply is not compressed",
                request.opened.number, request.node,
            )  # fmt: skip

    def _accept_plain(self, request: ArraysRequest, content: RecordDict) -> None:
        if not content.array_records:
            if request.records:
                reason = "answered without arrays; where that is meant, its ClientApp needs mods=[compress_uplink]"
                raise PayloadError(reason, code="records")
            return
        if not self._fleet.plain_replies:
            raise PayloadError("answered with plain arrays; its ClientApp needs mods=[compress_uplink]", code="no-mod")
        check_plain(content, request.records)
        if not request.refused and request.node not in self._fleet.plain:
            self._fleet.plain.add(request.node)
            _log.warning(
                "round %s: node %s answers with plain arrays, which count; its ClientApp needs mods=[compress_uplink] "
                "to send less", request.opened.number, request.node,
            )  # fmt: skip

    def _count(self, request: ArraysRequest, error: str | None) -> None:
        """Note that a client has answered, and end the run if too many rounds have failed.

        Raises:
            RunError: they have.
        """
        opened = request.opened
        if request.task is None:
            return
        opened.waiting -= 1
        opened.used = opened.used or error is None
        opened.first_error = opened.first_error or error or ""
        if opened.waiting > 0:
            return
        opened.contexts.clear()
        self._failed = 0 if opened.used else self._failed + 1
        if self._max_failed is not None and self._failed > self._max_failed:
            rounds = f"round {opened.number}" if self._failed == 1 else f"{self._failed} rounds in a row"
            reason = opened.no_sum or f"all clients failed in {rounds}; first {opened.first_error}"
            raise RunError(
                f"{reason}; say max_failed_rounds={self._failed} to go on after that",
                code="all-failed",
                value=self._failed,
            ) from None

    def _of_round(self, trained: Sequence[Message]) -> tuple[PluginSettings, Method]:
        """Return the settings and the method of a round; only the default and a budget change them."""
        if self.budget is not None and trained:
            records = trained[0].content.array_records.values()
            values = next((to_values(record) for record in records), {})
            settings = self.budget.next_settings(self.settings, values, self._control)
            if self._control is not None and self._rate is not None and math.isnan(self._rate[1]):
                self._rate = self._control.first(self.budget.body_bits(self.budget.share))
            return settings, settings.build()
        if not self._even:
            return self.settings, self._method
        bits = bits_of_round(self._number, len(trained), single=self._single, only=self._only)
        settings = replace(self.settings, options={"bits": bits} if bits > 1 else {})
        return settings, settings.build()

    def _scale(self, trained: Sequence[Message]) -> float | None:
        """Return the scale of the noise in a round; None without a rate control.

        It is limited like the scales that clients set by themselves: larger noise drowns the weights.
        """
        if self._rate is None:
            return None
        if trained:
            from fedmrn_app.plugin.scale_limit import largest_scale  # few runs have a rate control

            most = largest_scale(to_values(next(iter(trained[0].content.array_records.values()))))
            if self._rate[0] > most:
                if not self._told_most:
                    self._told_most = True
                    _log.warning(
                        "round %s: %s: asks for noise of the scale %.3g, and weights of this size bear %.3g; "
                        "replies are longer than that. Raise it, or leave it out for alpha=auto",
                        self._number, self._asked_size(), self._rate[0], most,
                    )  # fmt: skip
                self._rate = np.array([most, *self._rate[1:]], np.float32)
        return float(self._rate[0])

    def _note_rate(self) -> None:
        """Let the rate control and the budget see the bits of the last round."""
        all_spent = [] if self._last is None else self._last.spent
        spent = Spent(*(float(np.mean(x)) for x in zip(*all_spent, strict=True))) if all_spent else None
        if self.budget is not None:
            self.budget.end_round(spent)
        if self._control is not None and self._rate is not None and spent is not None:
            aimed, least = spent.left, spent.least
            left = aimed if self.budget is None else self.budget.body_bits(self.budget.upcoming(self._control))
            if left < least and not self._told_least:
                self._told_least = True
                _log.warning(
                    "%s: leaves masks %.3f bits per weight, beside biases and the like; they take at least %.2f, "
                    "because shorter ones would have so much noise that nothing is learned",
                    self._asked_size(), left, least,
                )  # fmt: skip
            self._rate = self._control.next(self._rate, spent.body, max(left, least), max(aimed, least))
        self._last = None

    def _asked_size(self) -> str:
        """Return the option that says how long replies are to be."""
        return f"bits={self.settings.bits:g}" if self.budget is None else f"budget={self.budget.bits:g}"

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the round of a state."""
        number, rate = state.get("round"), state.get("rate")
        if type(number) is not int or number < 0 or state.get("method") != self.settings.method:
            reason = (
                f"state={dict(state)}: is none of a run with method={self.settings.method}; give what state() returned"
            )
            raise ConfigError(reason, code="state", key="state", value=dict(state))
        self._number = number
        if self.budget is not None and isinstance(state.get("budget"), list):
            self.budget.restore(state["budget"])
        self._run = self._run and (state.get("run") or self._run)
        if self._rate is not None and rate is not None:
            self._rate = np.array([math.nan if x is None else x for x in rate], np.float32)


def _run_budget(
    method: str,
    budget: float | None,
    schedule: Schedule,
    *,
    bits: float | None,
    alpha: object,
    secure: bool,
    reply: Reply,
    options: Mapping[str, Any],
) -> RunBudget | None:
    """Return the budget of a run, if it has one.

    Raises:
        ConfigError: it does not go with the other options; or `reply` does not.
    """
    if reply == "difference" and (secure or method in _MASKS):
        reason = "secure sums add up changes of the arrays" if secure else f"{method} learns weights as masks"
        raise ConfigError(f"reply={reply}: {reason}; leave it out", code="conflict", key="reply", value=reply)
    if budget is None:
        if schedule != "auto":
            reason = f"schedule={schedule}: divides a budget; say budget=0.5, or leave it out"
            raise ConfigError(reason, code="unused", key="schedule", value=schedule)
        return None
    from fedmrn_app.plugin.run_budget import RunBudget, check_budget  # few runs have one

    check_budget(budget, method, bits=bits, alpha=alpha, secure=secure, options=options)
    return RunBudget(budget, schedule)

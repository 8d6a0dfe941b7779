"""What the server keeps from round to round, and what it asks of each client: for any strategy or loop.

    messages -> Exchange.open -> requests, with other contents -> clients -> Exchange.read -> replies with arrays

A client that cannot read its message is asked again in the same round: with the whole arrays if it has lost what the
message refers to, with plain arrays if it has no plug-in or one of another version.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from flwr.app import Error, Message, RecordDict

from fedmrn_app.errors import ConfigError, PayloadError, RunError
from fedmrn_app.exchange.messages import content_bytes, read_lost
from fedmrn_app.methods.rate_control import least_mask_bits
from fedmrn_app.noise import Distribution
from fedmrn_app.plugin.arrays import only_arrays
from fedmrn_app.plugin.downlink import GRID, LatticeSender
from fedmrn_app.plugin.replies import (
    add_counts,
    add_rounding,
    check_answer,
    check_plain,
    decode_payload,
    read_refusal,
)
from fedmrn_app.plugin.request import Request, Round
from fedmrn_app.plugin.secure_rounds import SecureRounds, Send, check_options
from fedmrn_app.plugin.secure_sum import SECURE_BITS, SECURE_BOUND, Steps
from fedmrn_app.plugin.settings import DEFAULT_ALPHA, RECORD, ClientTask, PluginSettings, check_own_scales, learns_masks
from fedmrn_app.seeds import derive_seed
from fedmrn_app.validation import Positive, Range
from fedmrn_app.wire.downlink import LATTICE_STEP

_LEFT_OUT = 3  # Flower's code of an error in the ClientApp
_log = logging.getLogger("flwr")


class Exchange:
    """The compression of a run's messages, see `plugin/options.py`, which checks the arguments.

    Raises:
        ConfigError: the method or an option does not work on an app's arrays, or `state` is not one.
    """

    def __init__(
        self,
        method: str,
        *,
        bits: Annotated[float, Range(above=0, most=32)] | None = None,
        noise: Distribution = "uniform",
        alpha: float | Literal["auto"] = DEFAULT_ALPHA,
        dense_bits: int = 6,
        seed: Annotated[int, Range(least=0, below=1 << 56)] = 0,
        downlink: Literal["float32", "grid"] = "float32",
        step: Positive = LATTICE_STEP,
        options: Mapping[str, Any] | None = None,
        plain_replies: bool = True,
        max_failed_rounds: Annotated[int, Range(least=0)] = 0,
        state: Mapping[str, Any] | None = None,
        secure: bool = False,
        secure_bits: Annotated[int, Range(least=8, most=32)] = SECURE_BITS,
        secure_bound: Positive = SECURE_BOUND,
    ) -> None:
        if alpha == "auto" and bits is not None:
            reason = f"alpha=auto: the server sets the scale of the noise so that replies take bits={bits:g}"
            raise ConfigError(f"{reason}; leave one of the two out", code="conflict", key="alpha", value=alpha)
        options, steps = dict(options or {}), Steps(secure_bits, secure_bound)
        if secure:
            check_options(method, bits=bits, alpha=alpha, dense_bits=dense_bits, downlink=downlink, options=options)
            options |= {"shared_noise": True} if method in ("fedmrn", "fedmrns") else {}
        elif steps != Steps(SECURE_BITS, SECURE_BOUND):
            reason = "secure_bits and secure_bound: are used with secure=True only"
            raise ConfigError(f"{reason}; leave them out, or say secure=True", code="unused", key="secure_bits")
        self.settings = PluginSettings(
            method=method, options=options, distribution=noise, bits=bits, dense_bits=dense_bits,
            seed=seed, alpha=DEFAULT_ALPHA if alpha == "auto" else alpha,
        )  # fmt: skip
        self._method = self.settings.build(secure=secure)
        self.sums = SecureRounds(self._method, steps) if secure else None
        if alpha == "auto" and self.has_noise:
            check_own_scales(self._method)
        # None where no masks are learned
        self._own_scales = alpha == "auto" if learns_masks(self._method) else None
        self._control = self._method.rate_control
        self._rate = None if self._control is None else self._control.first(self._control.bits)
        self._sender = LatticeSender(step) if downlink == "grid" else None
        self._plain_replies, self._max_failed = plain_replies, max_failed_rounds
        self._last: Round | None = None  # whose bits the rate control has not seen
        self._told_least = False  # whether the log has said that the budget is too small
        self._number = self._failed = 0
        self._off_grid: set[int] = set()  # nodes that are sent plain arrays
        self._refusing: set[int] = set()  # nodes that are asked for nothing, because their plug-in is another
        self._plain_nodes: set[int] = set()  # nodes whose plain replies were mentioned in the log
        if state is not None:
            self._restore(state)

    @property
    def has_noise(self) -> bool:
        """Whether the method masks noise, so that its scale and its distribution matter."""
        return hasattr(self._method.codec, "noise")

    def __str__(self) -> str:
        """Return the settings that have an effect, for the log."""
        settings, words = self.settings, [self.settings.method]
        words += [f"{name}={value}" for name, value in settings.options.items()]
        if self.has_noise:
            alpha = "auto" if self._own_scales else f"{settings.alpha:g}"
            words += [f"{settings.distribution} noise", f"alpha={alpha}"]
            words += [] if settings.bits is None else [f"bits={settings.bits:g}"]
        return ", ".join([*words, f"dense_bits={settings.dense_bits}", f"seed={settings.seed}"])

    def state(self) -> dict[str, Any]:
        """Return what a later run needs to go on, in a form that JSON can hold."""
        self._note_rate()
        rate = None if self._rate is None else [None if math.isnan(x) else float(x) for x in self._rate]
        return {"method": self.settings.method, "round": self._number, "rate": rate}

    def open(self, messages: Sequence[Message]) -> list[Request]:
        """Change the contents of messages that are to be compressed, and return what their clients are asked.

        Raises:
            ConfigError: clients are sent different arrays on a grid.
            RunError: a message has no arrays, or several ArrayRecords.
        """
        kinds = {id(message): message.metadata.message_type.split(".")[0] for message in messages}
        trained = [message for message in messages if kinds[id(message)] == "train"]
        evaluated = [message for message in messages if self._sender and kinds[id(message)] == "evaluate"]
        if trained:
            self._note_rate()
            self._number += 1
        opened = Round(number=self._number, waiting=len(trained))
        scale = None if self._rate is None else float(self._rate[0])
        requests = []
        for number, message in enumerate(sorted(trained, key=lambda message: message.metadata.dst_node_id)):
            seed = derive_seed(self.settings.seed, "noise", self._number, 0 if self.sums else number)
            requests.append(self._request(message, opened, ClientTask(self.settings, seed, scale, self._own_scales)))
        requests += [self._request(message, opened, None) for message in evaluated]
        if trained:
            self._last = opened
        return requests

    def read(self, request: Request, reply: Message | None) -> Message | None:
        """Return the reply to a request with the arrays that it stands for, or an error that says why it has none.

        Args:
            request: one of those that `open` returned.
            reply: to its last message; None if there is none in time.

        Returns:
            None if the client is to be sent the request's new message.

        Raises:
            RunError: all clients of this round have failed, and of too many before.
        """
        if reply is not None and self._ask_again(request, reply):
            return None
        try:
            return self._accept(request, reply)
        except (PayloadError, RunError) as error:
            if self._sender is not None and request.on_grid and reply is not None:
                self._sender.forget(request.node)  # its app may have lost the mod
            left_out = self._leave_out(request, error)
            failed = reply is not None and reply.has_error() and request.first is request.message
            return reply if failed else left_out

    def sum_up(self, requests: Sequence[Request], send: Send, timeout: float | None) -> list[Message]:
        """Run a secure round, and return the replies, whose arrays are means, and errors of clients that are left out.

        Args:
            requests: those that `open` returned.
            send: sends messages and returns the replies that arrive within so many seconds.
            timeout: seconds for the whole round; None for any.

        Raises:
            RunError: there is no sum, in more rounds in a row than `max_failed_rounds`.
        """
        assert self.sums is not None
        results, requests[0].opened.no_sum = self.sums.run(requests, send, timeout)
        replies = []
        for request, result in zip(requests, results, strict=True):
            if isinstance(result, Message):
                self._count(request, None)
            replies.append(result if isinstance(result, Message) else self._leave_out(request, result))
        return replies

    def _leave_out(self, request: Request, error: PayloadError | RunError) -> Message:
        """Log and count a client that is left out, and return the error that the strategy or loop is given."""
        _log.warning("round %s: node %s left out: %s", request.opened.number, request.node, error)
        self._count(request, f"node {request.node}: {error}")
        return Message(Error(_LEFT_OUT, str(error)), reply_to=request.first)

    def _request(self, message: Message, opened: Round, task: ClientTask | None) -> Request:
        request = Request(first=message, message=message, content=message.content, opened=opened, task=task)
        request.on_grid = self._sender is not None and request.node not in self._off_grid
        if self.sums is not None:
            return request
        request.refused = request.node in self._refusing
        if request.on_grid and self._sender is not None and opened.lattice is None:
            opened.lattice = self._sender.open(only_arrays(message.content)[1])
        message.content = self._content(request)
        return request

    def _content(self, request: Request) -> RecordDict:
        """Return the content of the message that is to be sent, and count its bytes."""
        content = RecordDict(dict(request.content))
        if request.on_grid and self._sender is not None and request.opened.lattice is not None:
            content = self._sender.content(request.opened.lattice, content, request.node)
            request.whole = bool(content.array_records)
        else:
            only_arrays(content)
        if request.task is not None and not request.refused:
            content[RECORD] = request.task.record()
        request.downlink_bytes += content_bytes(content)
        return content

    def _ask_again(self, request: Request, reply: Message) -> bool:
        """Give a request another message if the client could not read the last one, and return whether it has one."""
        reason, lost = read_refusal(reply), read_lost(reply)
        if reason is not None and self._plain_replies and not request.refused:
            _log.warning("round %s: node %s is sent plain arrays: %s", request.opened.number, request.node, reason)
            self._refusing.add(request.node)
            self._off_grid.add(request.node)
            request.refused, request.on_grid = True, False
        elif request.on_grid and self._sender is not None and lost is not None and not request.whole:
            self._sender.forget(request.node)
        elif (
            request.on_grid
            and self._plain_replies
            and not _has_read_grid(reply)
            and (request.whole or not reply.has_error())
        ):
            if not reply.has_error():
                self._off_grid.add(request.node)
            request.on_grid = False
        else:
            return False
        metadata = request.first.metadata
        content = self._content(request)
        request.message = Message(content, request.node, metadata.message_type, group_id=metadata.group_id)
        return True

    def _accept(self, request: Request, reply: Message | None) -> Message:
        """Return a usable reply with arrays.

        Raises:
            PayloadError, RunError: why it cannot be used.
        """
        if reply is None:
            raise PayloadError("no reply in time", code="timeout")
        check_answer(reply)
        if (refusal := read_refusal(reply)) is not None:
            raise PayloadError(refusal, code="format")
        if read_lost(reply) is not None:
            raise PayloadError("has lost the arrays that its message refers to", code="lost")
        if request.on_grid and not _has_read_grid(reply):
            raise PayloadError("answered without having read the arrays on the grid; its ClientApp needs "
                               "mods=[compress_uplink]", code="no-mod")  # fmt: skip
        content, uplink = reply.content, content_bytes(reply.content)
        content.pop(GRID, None)
        if request.task is not None:
            if content.array_records:
                self._accept_plain(request, content)
            else:
                spent = decode_payload(content, request.task, self._method, request.values, request.opened.contexts)
                if request.on_grid:
                    add_rounding(content, request.exact, request.values)
                request.opened.spent += [] if spent is None else [spent]
            add_counts(content, uplink, request.downlink_bytes, request.values)
        if request.on_grid and self._sender is not None and request.opened.lattice is not None:
            self._sender.note(request.opened.lattice, request.node)
        elif request.first is not request.message and (request.task is None or content.array_records):
            self._off_grid.add(request.node)
        self._count(request, None)
        return reply if request.first is request.message else Message(content, reply_to=request.first)

    def _accept_plain(self, request: Request, content: RecordDict) -> None:
        if not self._plain_replies:
            raise PayloadError("answered with plain arrays; its ClientApp needs mods=[compress_uplink]", code="no-mod")
        check_plain(content, request.values)
        if not request.refused and request.node not in self._plain_nodes:
            self._plain_nodes.add(request.node)
            _log.warning(
                "round %s: node %s answers with plain arrays, which count; its ClientApp needs mods=[compress_uplink] "
                "to send less", request.opened.number, request.node,
            )  # fmt: skip

    def _count(self, request: Request, error: str | None) -> None:
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
        if self._failed > self._max_failed:
            rounds = f"round {opened.number}" if self._failed == 1 else f"{self._failed} rounds in a row"
            reason = opened.no_sum or f"all clients failed in {rounds}; first {opened.first_error}"
            raise RunError(
                f"{reason}; say max_failed_rounds={self._failed} to go on after that",
                code="all-failed",
                value=self._failed,
            ) from None

    def _note_rate(self) -> None:
        """Let the rate control see the bits of the last round."""
        if self._control is not None and self._rate is not None and self._last is not None and self._last.spent:
            body, left = (float(np.mean(bits)) for bits in zip(*self._last.spent, strict=True))
            if left < (least := least_mask_bits()) and not self._told_least:
                self._told_least = True
                _log.warning(
                    "bits=%g: leaves masks %.3f bits per weight, beside biases and the like; they take at least %.2f, "
                    "because shorter ones would have so much noise that nothing is learned",
                    self.settings.bits, left, least,
                )  # fmt: skip
            self._rate = self._control.next(self._rate, body, left)
        self._last = None

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the round of a state."""
        number, rate = state.get("round"), state.get("rate")
        if type(number) is not int or number < 0 or state.get("method") != self.settings.method:
            reason = (
                f"state={dict(state)}: is none of a run with method={self.settings.method}; give what state() returned"
            )
            raise ConfigError(reason, code="state", key="state", value=dict(state))
        self._number = number
        if self._rate is not None and rate is not None:
            self._rate = np.array([math.nan if x is None else x for x in rate], np.float32)


def _has_read_grid(reply: Message) -> bool:
    """Return whether a reply to arrays on the grid comes from a client that has read them: only the mod can."""
    if reply.has_error():
        return False
    payload = any(isinstance(record.get(""), bytes) for record in reply.content.config_records.values())
    return GRID in reply.content or (payload and not reply.content.array_records)

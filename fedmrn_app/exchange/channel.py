"""The channel between the server and the clients: it sends requests, waits for replies, and asks again.

`requests.py` says what a client is asked, and when it is asked again. Nobody waits for the reply of a node that has
died, nor for more replies than a policy needs. Synchronous rounds call `ask`; the asynchronous loop calls `send` and
`receive`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.serverapp import Grid

from fedmrn_app.errors import PayloadError
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.messages import read_payload_of
from fedmrn_app.exchange.requests import Asked, Request

_POLL_SECONDS = 1.0
_POLL_SIMULATION = 0.05  # the nodes of a simulation are on this machine
# Messages that a simulation holds at a time, per node and at least: Flower searches all of them for each node.
_PER_NODE, _HELD = 2, 16
_EXPIRY_MARGIN = 5.0  # seconds before Flower forgets a message, after which the channel does not ask for its reply
_UNUSUAL_FACTOR, _UNUSUAL_SECONDS = 10, 60.0  # of the longest reply so far
_FRAME_BYTES = 4096  # more than Flower puts around a payload


@dataclass(frozen=True)
class ReplyPolicy:
    """When a round has waited long enough.

    Attributes:
        needed: number of usable replies to wait for; None for a reply to every request.
        timeout: seconds after which a reply counts as missing.
    """

    needed: int | None = None
    timeout: float = 3600.0


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        request: what was asked.
        payload: the client's payload, or why there is none; None where the round did not wait for it.
        uplink_bytes: bytes of the contents of all replies to the request, with Flower's framing.
        downlink_bytes: bytes of the contents of all messages of the request, with Flower's framing.
        seconds: time from the request to the reply; 0 without a reply.
    """

    request: Request
    payload: bytes | PayloadError | None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    seconds: float = 0.0


@dataclass
class _Pending(Asked[Request]):
    """A request without a usable reply.

    Attributes:
        begun: monotonic time at which the request was made.
        timeout: seconds after which its reply counts as missing.
        node_start: when its node was started, as Flower says; changes when the node restarts.
        pushed: monotonic time at which its last message was sent.
        expires: time at which Flower forgets that message, in seconds since 1970.
        told: whether a line has said that the reply takes unusually long.
    """

    begun: float
    timeout: float
    node_start: str = ""
    pushed: float = 0.0
    expires: float = 0.0
    told: bool = False

    @property
    def deadline(self) -> float:
        """Monotonic time after which the reply counts as missing."""
        return self.begun + self.timeout

    def answer(self, payload: bytes | PayloadError | None, seconds: float = 0.0) -> Answer:
        """Return what became of the request."""
        return Answer(self.request, payload, self.uplink_bytes, self.downlink_bytes, seconds)


@dataclass
class _Queues:
    """Requests by what they wait for.

    Attributes:
        unsent: to be sent.
        pending: for a reply, by the id of their message.
        delayed: a simulated straggler's reply, and when it counts as received.
        discarded: messages whose replies nobody waits for, and when Flower forgets them.
        failed: answers to requests that could not be sent.
    """

    unsent: deque[_Pending] = field(default_factory=deque)
    pending: dict[str, _Pending] = field(default_factory=dict)
    delayed: list[tuple[float, _Pending, Message]] = field(default_factory=list)
    discarded: dict[str, float] = field(default_factory=dict)
    failed: list[Answer] = field(default_factory=list)


class Channel:
    """Sends requests over Flower's grid and collects the answers.

    A node counts as dead only after all others have answered: a node whose heartbeat is merely late may have been heard
    of again by then.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: LiveNodes,
        *,
        refresh: Callable[[], object],
        max_payload_bytes: int,
        slowdown: Mapping[int, float] | None = None,
        report: Callable[[str], None] = lambda line: None,
        clock: Clock | None = None,
        wait: Callable[[float], object] | None = None,
        hold: int = _HELD,
    ) -> None:
        """Open the channel.

        Args:
            grid: Flower's grid.
            nodes: the nodes of the run.
            refresh: updates `nodes`; it is called about once a second while the channel waits.
            max_payload_bytes: replies that are longer are refused.
            slowdown: factor by which each simulated straggler's replies are delayed, by client.
            report: called with a line about a reply for which a simulation has waited unusually long.
            clock: what time it is.
            wait: returns when a reply has arrived, or after so many seconds; None to wait for these seconds.
            hold: number of messages that a simulation holds at a time; more where it has more than half as many nodes.
        """
        self._grid = grid
        self._nodes = nodes
        self._refresh = refresh
        self._max_bytes = max_payload_bytes + _FRAME_BYTES
        self._slowdown = slowdown or {}
        self._busy: dict[int, float] = {}  # until when stragglers train
        self._queues = _Queues()
        self._report = report
        self._longest = 0.0  # seconds that a reply has taken so far
        self._deadline = math.inf  # before which no request is late
        self._clock = clock or Clock()
        self._wait = wait or self._clock.sleep
        self._hold = hold

    def ask(
        self,
        requests: Sequence[Request],
        policy: ReplyPolicy,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> list[Answer]:
        """Send requests and wait for the replies that a policy needs.

        Args:
            requests: one for each client.
            policy: how many replies are needed, and how long they may take.
            on_answer: called with each answer as it arrives.

        Returns:
            One answer for each request, in the order of the requests. A payload of None marks the requests that were
            open when enough others were usable.
        """
        self.discard()
        self.send(requests, policy.timeout)
        answers: dict[int, Answer] = {}  # by the identity of the request
        usable = 0
        while self.waits and (policy.needed is None or usable < policy.needed):
            for answer in self.receive():
                if policy.needed is not None:
                    if usable >= policy.needed:
                        break
                    answer = _checked(answer)
                    usable += isinstance(answer.payload, bytes)
                answers[id(answer.request)] = answer
                on_answer(answer)
            if self.waits and (policy.needed is None or usable < policy.needed):
                self.pause()
        open_requests = self.discard()
        answers |= {id(one.request): one.answer(None) for one in open_requests if id(one.request) not in answers}
        return [answers.get(id(request), Answer(request, None)) for request in requests]

    def send(self, requests: Iterable[Request], timeout: float) -> None:
        """Send requests whose replies may take `timeout` seconds; a simulation is sent a few at a time."""
        now = self._clock.monotonic()
        self._queues.unsent.extend(_Pending(request, begun=now, timeout=timeout) for request in requests)
        self._deadline = min(self._deadline, now + timeout)
        self._push()

    @property
    def waits(self) -> bool:
        """Whether there are requests without an answer."""
        queues = self._queues
        return bool(queues.unsent or queues.pending or queues.delayed or queues.failed)

    def pause(self) -> None:
        """Wait a little for replies."""
        self._wait(_POLL_SIMULATION if self._nodes.steady else _POLL_SECONDS)

    def receive(self) -> list[Answer]:
        """Return the answers that are known by now: replies, and requests whose replies will not come."""
        answers = [answer for one, reply in self._pull() if (answer := self._read(one, reply)) is not None]
        self._push()
        if self._nodes.steady:
            self._tell_unusual()
        else:
            answers += self._give_up_dead_nodes()
        answers += self._give_up_late() + self._queues.failed
        self._queues.failed = []
        return answers

    def discard(self) -> list[_Pending]:
        """Stop waiting for all requests and return them; later replies are discarded."""
        queues = self._queues
        opened = [*queues.unsent, *queues.pending.values(), *(one for _, one, _ in queues.delayed)]
        discarded = queues.discarded | {message: one.expires for message, one in queues.pending.items()}
        self._queues = _Queues(discarded=discarded)
        return opened

    def _pull(self) -> list[tuple[_Pending, Message]]:
        """Return the replies that have arrived with their requests, and start the delay of stragglers' replies."""
        queues, now, wall = self._queues, self._clock.monotonic(), self._clock.time()
        queues.discarded = {one: until for one, until in queues.discarded.items() if until > wall + _EXPIRY_MARGIN}
        wanted = [*queues.pending, *queues.discarded]
        arrived = []
        for reply in self._grid.pull_messages(wanted) if wanted else ():
            message = reply.metadata.reply_to_message_id
            one = queues.pending.pop(message, None)
            if one is None:
                queues.discarded.pop(message, None)
            elif self._nodes.steady and one.request.client in self._slowdown:
                queues.delayed.append((self._due(one, now), one, reply))
            else:
                arrived.append((one, reply))
        arrived += [(one, reply) for due, one, reply in queues.delayed if due <= now]
        queues.delayed = [entry for entry in queues.delayed if entry[0] > now]
        return arrived

    def _read(self, one: _Pending, reply: Message) -> Answer | None:
        """Return the answer that a reply is; None if the client is asked again."""
        size, now = one.count(reply), self._clock.monotonic()
        if size > self._max_bytes:
            reason = f"its reply has {size:,} bytes, and none has more than {self._max_bytes:,}"
            return one.answer(PayloadError(reason, code="too-long", value=size))
        try:
            if now < one.deadline and one.asks_again(reply):
                self._queues.unsent.append(one)
                return None
            payload: bytes | PayloadError = read_payload_of(reply, one.request.node)
        except PayloadError as error:
            payload = error
        self._longest = max(self._longest, now - one.pushed)
        return one.answer(payload, now - one.begun)

    def _tell_unusual(self) -> None:
        """Report each reply that takes ten times as long as any before, and at least a minute."""
        limit, now = max(_UNUSUAL_SECONDS, _UNUSUAL_FACTOR * self._longest), self._clock.monotonic()
        for one in self._queues.pending.values():
            if self._longest and not one.told and now - one.pushed > limit:
                one.told = True
                self._report(
                    f"round {one.request.group}: client {one.request.client} has not answered for {limit:.0f} s, and "
                    "the run waits for it; its process may be stopped, or the machine short of memory"
                )

    def _due(self, one: _Pending, now: float) -> float:
        """Return when a straggler's reply counts as received; a straggler trains for one request after the other."""
        client = one.request.client
        due = max(self._busy.get(client, 0.0), one.pushed) + self._slowdown[client] * (now - one.pushed)
        self._busy[client] = due
        return due

    def _push(self) -> None:
        """Send the requests that may be sent now."""
        queues = self._queues
        count = len(queues.unsent)
        if self._nodes.steady:
            room = max(self._hold, _PER_NODE * len(self._nodes.alive)) - len(queues.pending)
            count = min(count, max(0, room))
        batch = [queues.unsent.popleft() for _ in range(count)]
        if not batch:
            return
        # Flower may forget a message when nobody waits for its reply any more.
        messages = [one.next_message(ttl=one.timeout + 60) for one in batch]
        pushed, now = set(self._grid.push_messages(messages)), self._clock.monotonic()
        for one, message in zip(batch, messages, strict=True):
            one.node_start = self._nodes.alive.get(one.request.node, "")
            one.pushed = now
            one.expires = message.metadata.created_at + message.metadata.ttl
            if message.metadata.message_id in pushed:
                queues.pending[message.metadata.message_id] = one
            else:
                queues.failed.append(_lost_node(one, "is not known to Flower"))

    def _give_up_dead_nodes(self) -> list[Answer]:
        """Give up the requests to nodes that have forgotten them."""
        self._refresh()
        alive, pending = self._nodes.alive, self._queues.pending
        restarted = [
            message for message, one in pending.items() if alive.get(one.request.node) not in (None, one.node_start)
        ]
        answers = self._fail(restarted, "was restarted")
        if not any(one.request.node in alive for one in pending.values()):
            answers += self._fail(list(pending), "has died: no heartbeat")
        return answers

    def _give_up_late(self) -> list[Answer]:
        """Give up the requests whose time is over."""
        queues, now = self._queues, self._clock.monotonic()
        if now < self._deadline:
            return []
        late = [message for message, one in queues.pending.items() if now >= one.deadline]
        overdue = []
        for message in late:
            overdue.append(queues.pending.pop(message))
            queues.discarded[message] = overdue[-1].expires
        overdue += [one for one in queues.unsent if now >= one.deadline]
        queues.unsent = deque(one for one in queues.unsent if now < one.deadline)
        overdue += [one for _, one, _ in queues.delayed if now >= one.deadline]
        queues.delayed = [entry for entry in queues.delayed if now < entry[1].deadline]
        left = [*queues.unsent, *queues.pending.values(), *(one for _, one, _ in queues.delayed)]
        self._deadline = min((one.deadline for one in left), default=math.inf)
        return [one.answer(PayloadError("no reply within round_timeout", code="timeout")) for one in overdue]

    def _fail(self, messages: Iterable[str], reason: str) -> list[Answer]:
        """Take messages out of those that wait, and answer their requests."""
        return [_lost_node(self._queues.pending.pop(message), reason) for message in messages]


def _lost_node(one: _Pending, reason: str) -> Answer:
    """Answer a request with the reason why its node will not reply."""
    return one.answer(PayloadError(f"its node {one.request.node} {reason}", code="node"))


def _checked(answer: Answer) -> Answer:
    """Return an answer whose payload has passed its request's check."""
    if isinstance(answer.payload, bytes):
        try:
            answer.request.check(answer.payload)
        except PayloadError as error:
            return Answer(answer.request, error, downlink_bytes=answer.downlink_bytes)
    return answer

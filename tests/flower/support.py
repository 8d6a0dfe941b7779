"""A clock whose time a test sets, Flower's grid with the nodes of a test, and a small round with made-up replies."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedmrn_app.exchange.channel import Channel
from fedmrn_app.exchange.clock import Clock
from fedmrn_app.exchange.liveness import LiveNodes
from fedmrn_app.exchange.messages import pack_state, payload_content, unpack_state
from fedmrn_app.exchange.orders import read_order
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.flower.async_loop import AsyncStrategy
from fedmrn_app.flower.host_table import HostTable, host_table
from fedmrn_app.flower.hosted import Hosted, hosted_content
from fedmrn_app.flower.round_settings import RoundSettings
from fedmrn_app.flower.strategy import FinishedRound, PayloadStrategy
from fedmrn_app.privacy.mechanism import Privacy
from fedmrn_app.wire.payload import Payload, encode_payload
from tests.local_nodes import set_message_id
from tests.reference import AGREEMENT, SAMPLES, STATE, made_up_payload

CONFIG = b"the run's configuration"
Reply = Message | RecordDict | Hosted | Error | None
Behaviour = Callable[[Message], Reply] | Reply  # what a node makes of a message; None never replies


class FakeClock(Clock):
    """A clock that stands still until somebody sleeps; what is scheduled happens on the way."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wall = time.time()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._wall + self.now

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = end

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Let something happen some seconds from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action))


@dataclass
class FakeGrid:
    """Flower's grid: nodes by id with what they make of messages, and after how many seconds each of them replies.

    What a test changes in `nodes`, `beats` and `starts` is what the next poll sees. `late` nodes connect after they
    were asked for twice.
    """

    nodes: dict[int, Behaviour]
    clock: FakeClock = field(default_factory=FakeClock)
    seconds: dict[int, float] = field(default_factory=dict)
    late: dict[int, Behaviour] = field(default_factory=dict)
    interval: float = 30.0
    beats: dict[int, float] = field(default_factory=dict)
    starts: dict[int, str] = field(default_factory=dict)
    asked: list[Message] = field(default_factory=list)
    answers: dict[str, Message] = field(default_factory=dict)
    polls: int = 0
    unknown: set[int] = field(default_factory=set)  # nodes that Flower does not know

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[Any]:
        self.polls += 1
        if self.polls > 2:
            self.nodes |= self.late
        return [
            SimpleNamespace(
                node_id=node,
                online_until=self.beats.get(node, self.polls),  # a beat at every poll unless the test says otherwise
                heartbeat_interval=self.interval,
                last_activated_at=self.starts.get(node, "once"),
            )
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = []
        for message in messages:
            name = f"message {len(self.asked)}"
            set_message_id(message, name)
            self.asked.append(message)
            node = message.metadata.dst_node_id
            if node in self.unknown:
                continue
            pushed.append(name)
            behaviour = self.nodes[node]
            reply = behaviour(message) if callable(behaviour) else behaviour
            if reply is not None:
                if isinstance(reply, Hosted):
                    reply = hosted_content(reply)
                whole = reply if isinstance(reply, Message) else Message(reply, reply_to=message)
                if seconds := self.seconds.get(node, 0.0):
                    self.clock.after(seconds, lambda name=name, whole=whole: self.answers.update({name: whole}))  # type: ignore[misc]
                else:
                    self.answers[name] = whole
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.answers.pop(message) for message in message_ids if message in self.answers]

    @property
    def orders(self) -> list[Order]:
        """What clients were asked, in order."""
        return [read_order(message.content) for message in self.asked]

    @property
    def grid(self) -> Grid:
        return cast(Grid, self)

    def live_nodes(self) -> LiveNodes:
        nodes = LiveNodes(self.grid, self.clock)
        nodes.poll()
        return nodes

    def channel(
        self,
        max_payload_bytes: int = 10_000,
        slowdown: Mapping[int, float] | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> Channel:
        nodes = self.live_nodes()
        return Channel(
            self.grid, nodes, refresh=nodes.poll, max_payload_bytes=max_payload_bytes, slowdown=slowdown,
            report=report, clock=self.clock,
        )  # fmt: skip


def good_payload(message: Message) -> Payload:
    order = read_order(message.content)
    return made_up_payload(order.client, order.seed)


def reply_with(message: Message, payload: bytes) -> Message:
    return Message(payload_content(payload), reply_to=message)


def good_reply(message: Message) -> Message:
    return reply_with(message, encode_payload(good_payload(message)))


def node_of(client: int) -> int:
    return 100 + client


class Directory:
    """Every client of the small round is on a node of its own; `absent` ones are not available."""

    def __init__(self, absent: Iterable[int] = ()) -> None:
        self.absent = set(absent)
        self.lines: list[str] = []
        self.current = self.available()

    def available(self) -> HostTable:
        offers = [
            (node_of(client), np.array([client]), np.array([samples]))
            for client, samples in SAMPLES.items()
            if client not in self.absent
        ]
        self.current = host_table(len(SAMPLES), offers)
        return self.current

    def report(self, line: str) -> None:
        self.lines.append(line)

    def roster(self) -> bytes | None:
        return None


def started(
    strategy: PayloadStrategy | AsyncStrategy, grid: Grid, state: GlobalState, last: int
) -> list[FinishedRound]:
    """Start a strategy, and return its rounds."""
    found: list[FinishedRound] = []

    def note(number: int, arrays: ArrayRecord) -> None:
        if strategy.last is not None:
            assert strategy.last.report.number == number
            found.append(strategy.last)

    result = strategy.start(grid, pack_state(state), last, evaluate_fn=note)
    if found:
        assert np.array_equal(unpack_state(result.arrays).vector, found[-1].state.vector)
    return found


class SmallRun:
    """The small round of `tests.reference` over a fake grid on which each client may behave in its own way."""

    def __init__(
        self,
        behaviours: Mapping[int, Behaviour] | None = None,
        seconds: Mapping[int, float] | None = None,
        *,
        protocol: RunProtocol = AGREEMENT,
        timeout: float | None = None,
        clients_per_round: int = 4,
        finished_rounds: int = 0,
        privacy: Privacy | None = None,
        **settings: Any,
    ) -> None:
        nodes: dict[int, Behaviour] = {node_of(client): good_reply for client in SAMPLES}
        nodes |= {node_of(client): behaviour for client, behaviour in (behaviours or {}).items()}
        self.grid = FakeGrid(nodes, seconds={node_of(client): n for client, n in (seconds or {}).items()})
        self.directory = Directory()
        self.strategy = PayloadStrategy(
            protocol,
            RoundSettings(clients=len(SAMPLES), clients_per_round=clients_per_round, config=CONFIG, **settings),
            directory=self.directory,
            channel=self.grid.channel(),
            timeout=RoundTimeout(timeout),
            finished_rounds=finished_rounds,
            privacy=privacy,
        )

    def rounds(self, last: int = 1, state: GlobalState = STATE) -> list[FinishedRound]:
        return started(self.strategy, self.grid.grid, state, last)

    def round(self) -> FinishedRound:
        (finished,) = self.rounds()
        return finished

    @property
    def asked(self) -> list[int]:
        """The clients that were asked, in order."""
        return [order.client for order in self.grid.orders]


def drawn(**settings: Any) -> list[int]:
    """The clients of the first round, in the order in which they are asked."""
    run = SmallRun(**settings)
    run.round()
    return run.asked

"""Flower's grid as nodes of a test's own answer it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message, RecordDict

import tests.reference  # noqa: F401  (Flower makes no message without)
from fedmrn_app.flower.messages import Hosted, hosted_content

Answer = Hosted | Error | None | Callable[[Message], RecordDict]


@dataclass
class FakeGrid:
    """Nodes by id, each with its answer; None never answers. `late` nodes connect when they were asked for twice.

    What a test changes in `nodes`, `beats` and `starts` is what the next look sees.
    """

    nodes: dict[int, Answer]
    late: dict[int, Answer] = field(default_factory=dict)
    asked: list[Message] = field(default_factory=list)
    answers: dict[str, Message] = field(default_factory=dict)
    polls: int = 0
    interval: float = 30.0
    beats: dict[int, float] = field(default_factory=dict)
    starts: dict[int, str] = field(default_factory=dict)

    def get_node_ids(self) -> list[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> list[Any]:
        self.polls += 1
        if self.polls > 2:
            self.nodes |= self.late
        return [
            SimpleNamespace(
                node_id=node,
                online_until=self.beats.get(node, self.polls),  # beats all the time, if the test does not say
                heartbeat_interval=self.interval,
                last_activated_at=self.starts.get(node, "once"),
            )
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = []
        for message in messages:
            pushed.append(f"message {len(self.asked)}")
            message.metadata.__dict__["_message_id"] = pushed[-1]
            self.asked.append(message)
            answer = self.nodes[message.metadata.dst_node_id]
            if isinstance(answer, Error):
                self.answers[pushed[-1]] = Message(answer, reply_to=message)
            elif answer is not None:
                content = hosted_content(answer) if isinstance(answer, Hosted) else answer(message)
                self.answers[pushed[-1]] = Message(content, reply_to=message)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.answers.pop(message) for message in message_ids if message in self.answers]

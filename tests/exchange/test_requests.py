"""A request counts its bytes, asks again as its reply says, and finds the reply to its last message."""

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedmrn_app.exchange.content_size import content_bytes
from fedmrn_app.exchange.messages import Lost, lost_content, payload_content
from fedmrn_app.exchange.requests import Asked, Request, match
from tests.local_nodes import allow_messages, set_message_id


class Ask(Request):
    client, node, group = 3, 7, "1"

    def content(self, lost: Lost | None = None) -> RecordDict:
        return RecordDict({"x": ConfigRecord({"lost": lost or "nothing"})})


@pytest.fixture(autouse=True)
def messages_are_possible() -> None:
    allow_messages()


def test_what_is_lost_is_sent_again_once_and_all_bytes_count() -> None:
    asked = Asked(Ask())
    first = asked.next_message()
    lost = Message(lost_content("version"), reply_to=first)
    assert asked.count(lost) == content_bytes(lost.content)
    assert asked.asks_again(lost)
    second = asked.next_message()
    assert second.content.config_records["x"]["lost"] == "version"
    assert asked.downlink_bytes == content_bytes(first.content) + content_bytes(second.content)
    asked.count(Message(Error(0, "failed"), reply_to=second))
    assert asked.uplink_bytes == content_bytes(lost.content)
    assert not asked.asks_again(Message(lost_content("version"), reply_to=second))
    assert asked.sent == 2


def test_a_message_of_somebody_else_is_given_the_content() -> None:
    own = Message(RecordDict(), 7, "train.own", group_id="5")
    asked = Asked(Ask())
    assert asked.next_message(own) is own
    assert own.content.config_records["x"]["lost"] == "nothing"
    set_message_id(own, "later")  # as a grid does when it sends it
    assert asked.message_id == "later"


def test_replies_are_matched_to_the_last_message() -> None:
    asked = [Asked(Ask()), Asked(Ask())]
    sent = [one.next_message() for one in asked]
    for number, message in enumerate([*sent, other := Message(RecordDict(), 9, "query")]):
        set_message_id(message, str(number))
    replies = [Message(payload_content(b"x"), reply_to=message) for message in (other, sent[1])]
    pairs, others = match(asked, replies)
    assert [reply for _, reply in pairs] == [None, replies[1]]
    assert others == [replies[0]]

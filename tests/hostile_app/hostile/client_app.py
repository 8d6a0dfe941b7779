"""The real ClientApp, except that the first clients misbehave, each in its own way."""

import time
from dataclasses import replace

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmrn_app import client_app as honest
from fedmrn_app.config.resolved import unpack_config
from fedmrn_app.exchange.messages import payload_content, read_payload
from fedmrn_app.exchange.orders import read_order
from fedmrn_app.federation.upload import header_of
from fedmrn_app.flower.node import Node
from fedmrn_app.wire.payload import decode_payload, encode_payload

MISDEEDS = ("raise", "truncate", "lie about samples", "send NaN", "another seed", "late")
FORGETS = 2, 6  # the round, and the client that has lost what it kept

app = ClientApp()
app.query()(honest.query)


@app.train()
def train(message: Message, context: Context) -> Message:
    order = read_order(message.content)
    worker = honest.open_worker(message, context)
    misdeed = MISDEEDS[order.client] if order.client < len(MISDEEDS) else "none"
    if (order.server_round, order.client) == FORGETS:
        Node.of(message, context).versions().path(order.client).unlink(missing_ok=True)
    if misdeed == "raise":
        raise RuntimeError("sabotage")
    if misdeed == "late" and unpack_config(Node.of(message, context).config).get("round_timeout"):
        time.sleep(3600)
    reply = honest.train(message, context)
    if misdeed in ("none", "late"):
        return reply
    data = read_payload(reply)
    if misdeed == "truncate":
        data = data[:-1]
    else:
        _, protocol = worker.model()
        samples = worker.sample_count(order.client)
        known = header_of(protocol, order.seed, samples, protocol.layout.count)
        payload = decode_payload(data, known)
        if misdeed == "lie about samples":
            payload = replace(payload, header=replace(known, samples=10_000))  # with a correct checksum, as those below
        elif misdeed == "send NaN":
            payload = replace(payload, dense=np.float32(np.nan).tobytes() + bytes(payload.dense[4:]))
        else:
            payload = replace(payload, header=replace(known, seed=order.seed ^ 1))
        data = encode_payload(payload)
    return Message(payload_content(data), reply_to=message)

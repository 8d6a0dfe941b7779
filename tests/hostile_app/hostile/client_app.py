"""The real ClientApp, except that the first clients misbehave, each in its own way."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmrn_app import client_app as honest
from fedmrn_app.uplink import FIELD, RECORD
from fedmrn_app.wire.payload import Expected, decode_payload, encode_payload

MISDEEDS = ("raise", "truncate", "lie about samples", "send NaN", "another seed", "late")

app = ClientApp()
app.query()(honest.query)


@app.train()
def train(message: Message, context: Context) -> Message:
    task: Any = message.content["task"]
    client, seed = task["client"], task["seed"]
    misdeed = MISDEEDS[client] if client < len(MISDEEDS) else "none"
    if misdeed == "raise":
        raise RuntimeError("sabotage")
    if misdeed == "late" and honest.open_party(context).config.round_timeout < 60:
        time.sleep(3600)
    reply = honest.train(message, context)
    sent: Any = reply.content[RECORD]
    data: bytes = sent[FIELD]
    if misdeed == "truncate":
        data = data[:-1]
    elif misdeed not in ("none", "late"):
        party = honest.open_party(context)
        model, _ = party.model()
        known = Expected(
            party.method.code,
            seed,
            len(party.rows[client]),
            model.weights.numel(),
            model.dense.numel(),
            party.config.uplink.dense_bits,
        )
        payload = decode_payload(data, known)
        if misdeed == "lie about samples":
            payload = replace(payload, samples=10_000)  # with a correct checksum, as the others below
        elif misdeed == "send NaN":
            payload = replace(payload, dense=np.float32(np.nan).tobytes() + bytes(payload.dense[4:]))
        else:
            payload = replace(payload, seed=seed ^ 1)
        data = encode_payload(payload)
    return Message(RecordDict({RECORD: ConfigRecord({FIELD: data})}), reply_to=message)

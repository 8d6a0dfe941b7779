"""Time and memory of one aggregation, in a process of its own; prints one JSON object.

Usage: python scripts/benchmark_server.py WEIGHTS REPLIES packed|auto

Memory is what the process takes at most, from before the global model and the replies exist until the next global model
is there. The time of copying the global vector, taken before and after, gives the scale.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedmrn_app.methods import Common, Noise
from fedmrn_app.methods.fedmrn import FedMRN
from fedmrn_app.noise import Float32Array
from fedmrn_app.strategy import Member, PayloadStrategy, pack_model
from fedmrn_app.uplink import FIELD, RECORD
from fedmrn_app.wire.bits import packed_size
from fedmrn_app.wire.body import Body
from fedmrn_app.wire.masks import pack_mask
from fedmrn_app.wire.payload import Payload, encode_payload
from scripts.memory import PeakMemory

DENSE = np.zeros(100, np.float32)


def body_of(method: FedMRN, seed: int, common: Common, number: int) -> Body:
    """A mask as training would give it, or random bits where they are packed plainly anyway."""
    random = np.random.default_rng(number)
    if method.coder == "packed":
        return Body(random.bytes(packed_size(common.count) - 1) + b"\0")
    noise = method.noise(seed, common.count)
    update = random.standard_normal(common.count, np.float32) * np.float32(method.noise.alpha / 4)
    kept = random.random(common.count, np.float32) < update / noise
    return pack_mask(kept, partial(method.evidence, noise, common), "auto")


def reply_to(message: Message, method: FedMRN, common: Common) -> Message:
    task = cast(dict[str, Any], message.content["task"])
    body = body_of(method, task["seed"], common, task["client"])
    payload = Payload(method.code, task["seed"], 600, common.count, body, DENSE.tobytes(), DENSE.size)
    content = RecordDict({RECORD: ConfigRecord({FIELD: encode_payload(payload)})})
    return Message(content, reply_to=message)


def copy_seconds(vector: Float32Array) -> float:
    target = np.empty_like(vector)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        np.copyto(target, vector)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    weights, replies, coder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower makes no message without
    method = FedMRN(Noise(), coder="packed" if coder == "packed" else "auto")
    shapes = ((weights // 1000, 1000),)
    memory = PeakMemory()
    memory.start()
    vector = np.zeros(weights, np.float32)
    members = {client: Member(client, 600) for client in range(replies)}
    strategy = PayloadStrategy(method, shapes, (DENSE.size,), vector, members, clients_per_round=replies, seed=1)
    messages = strategy.configure_train(1, pack_model(vector, DENSE), ConfigRecord(), None)  # type: ignore[arg-type]
    answers = []
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"message {number}"  # as the grid does when it sends
        answers.append(reply_to(message, method, Common(shapes, vector, vector)))
    payloads = sum(len(cast(bytes, a.content.config_records[RECORD][FIELD])) for a in answers)
    del messages, message  # they are on their way
    scale = copy_seconds(vector)
    start = time.perf_counter()
    strategy.aggregate_train(1, answers)
    seconds = time.perf_counter() - start
    peak = memory.stop()
    scale = (scale + copy_seconds(vector)) / 2
    assert len(strategy.report.uplink_bytes) == replies, strategy.report.failures
    print(
        json.dumps(
            {
                "weights": weights,
                "replies": replies,
                "coder": coder,
                "seconds": seconds,
                "copies": seconds / replies / scale,
                "memory": peak,
                "payloads": payloads / 2**20,
            }
        )
    )


if __name__ == "__main__":
    main()

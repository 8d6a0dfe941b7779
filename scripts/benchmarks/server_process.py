"""Measure time and memory of one aggregation in its own process, and print one JSON object.

Usage: python -m scripts.benchmarks.server_process WEIGHTS REPLIES packed|auto [THREADS]

All cores read replies if no number of threads is given. `cpu` are the seconds that all threads worked.

Memory is what the process takes at most while replies are read and the next global model is packed, beyond what it
took before the global model and the replies existed; the model that was sent stays until then, as Flower's loop keeps
it. The time of copying the global vector, taken before and after, gives the scale.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial

import numpy as np
import torch

from fedmrn_app.exchange.messages import pack_state, unpack_state
from fedmrn_app.federation.protocol import GlobalState, Order, RunProtocol
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.kernels.counter_rng import known_key
from fedmrn_app.kernels.thresholds import uniforms
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.fedmrn import NoiseMask
from fedmrn_app.methods.mask_decoding import ReplyNoise
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.wire.body import CODERS, Body, Coder
from fedmrn_app.wire.masks import pack_mask
from fedmrn_app.wire.primitives import packed_size
from scripts.benchmarks.memory import PeakMemory

DENSE = np.zeros(100, np.float32)
SAMPLES = 600
NOISE = Noise()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of one aggregation, as one JSON object.")
    parser.add_argument("weights", type=int)
    parser.add_argument("replies", type=int)
    parser.add_argument("coder", choices=CODERS)
    parser.add_argument("threads", type=int, nargs="?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({**vars(arguments), **aggregate(**vars(arguments))}))


def aggregate(weights: int, replies: int, coder: Coder, threads: int | None) -> dict[str, float]:
    """Aggregate one round of artificial replies."""
    opened, payloads = made_up_round(1 << 18, 1, coder)
    close_round(opened, dict(payloads), threads)  # compiles, or reads what has been compiled
    memory = PeakMemory()
    opened, payloads = made_up_round(weights, replies, coder)
    vector = opened.protocol.initial
    scale = copy_seconds(vector)
    memory.start()
    start, worked = time.perf_counter(), time.process_time()
    closed, report = close_round(opened, dict(payloads), threads)
    pack_state(closed)
    seconds, cpu = time.perf_counter() - start, time.process_time() - worked
    peak = memory.stop()
    cpu -= memory.worked
    scale = (scale + copy_seconds(vector)) / 2
    assert len(report.used) == replies, report.failures
    size = sum(len(data) for data in payloads.values()) / 2**20
    return {"seconds": seconds, "cpu": cpu, "copies": seconds / replies / scale, "memory": peak, "payloads": size}


def made_up_round(weights: int, replies: int, coder: Coder) -> tuple[OpenRound, dict[int, bytes]]:
    """Return a round of rows of a thousand weights, and its replies."""
    method = build_method("fedmrn", {}, RunOptions(NOISE, coder=coder))
    vector = np.zeros(weights // 1000 * 1000, np.float32)
    protocol = RunProtocol(
        method=method,
        layout=Layout(((weights // 1000, 1000),)),
        dense_sizes=(DENSE.size,),
        initial=vector,
        seed=1,
        dense_bits=32,
    )
    state = unpack_state(pack_state(GlobalState(vector, DENSE)))  # as Flower passes it on
    opened = open_round(protocol, state, 1, dict.fromkeys(range(replies), SAMPLES), replies)
    return opened, {client: make_payload(protocol, opened.order(client), coder) for client in opened.clients}


def make_payload(protocol: RunProtocol, order: Order, coder: Coder) -> bytes:
    """Return a mask as training would give it, or random bits where masks are packed plainly."""
    count = protocol.layout.count
    random = np.random.default_rng(order.client)
    if coder == "packed":
        body = Body(random.bytes(packed_size(count) - 1) + b"\0")
    else:
        codec, noise = protocol.method.codec, NOISE(order.seed, count)
        assert isinstance(codec, NoiseMask)
        update = random.standard_normal(count, np.float32) * np.float32(NOISE.alpha / 4)
        kept = uniforms(known_key(order.seed), count) < update / noise  # drawn with less memory than a client's
        source = ReplyNoise(NOISE, order.seed, noise)
        body = pack_mask(
            kept, partial(codec.side_info, source, protocol.context(np.asarray(order.vector), None)), "auto"
        )
    header = header_of(protocol, order.seed, SAMPLES, count)
    return write_upload(protocol, header, Update(body, DENSE), DENSE)


def copy_seconds(vector: Float32Array) -> float:
    target = np.empty_like(vector)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        np.copyto(target, vector)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()

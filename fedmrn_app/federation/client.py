"""The client's half of a round: from the server's order to the bytes of a payload."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from fedmrn_app.federation.download import Downloads
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.federation.versions import Version
from fedmrn_app.layout import Float32Array
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.methods.method import TrainContext
from fedmrn_app.seeds import derive_seed
from fedmrn_app.tasks.task import Samples, Task


@dataclass(frozen=True)
class Kept:
    """What a client keeps for the next round.

    Attributes:
        residual: float32 (d,), with error feedback what the last upload left out.
        version: with `downlink.memory` the global model as it was sent.
    """

    residual: Float32Array | None = None
    version: Version | None = None


@dataclass(frozen=True)
class Reply:
    """What a client gives in a round: the payload, and what it is to keep."""

    payload: bytes
    kept: Kept


def train_client(
    protocol: RunProtocol,
    model: FlatModel,
    task: Task,
    samples: Samples,
    order: Order,
    local: LocalSettings,
    precision: Precision = "float32",
    kept: Kept | None = None,
    downloads: Downloads | None = None,
) -> Reply:
    """Train one client for one round.

    Args:
        protocol: of the run, for the model's width.
        model: to train in; its weights are whatever the last training left.
        task: what is learned.
        samples: the client's, in memory.
        order: of the server.
        local: how to train.
        precision: arithmetic of the forward pass.
        kept: what `Reply` held the last time; None the first time.
        downloads: of this process, where it trains several clients.

    Raises:
        VersionError: the order needs a version that was not kept.
        PayloadError: the order is malformed.
    """
    kept = kept or Kept()
    method, seed = protocol.method, order.seed
    # a narrower model consists of what the client holds
    whole = method.selection.width(order.client, order.server_round) == 1
    held = method.selection.held(protocol.layout, order.client, order.server_round, seed) if whole else None
    sent = (downloads or Downloads(protocol)).read(order, held, kept.version)
    known = sent.known
    model.load(known.vector, sent.dense)
    private_seed = derive_seed(protocol.seed, "method", order.server_round, order.client)
    batches = Batches(
        task,
        samples,
        batch_size=local.batch_size,
        epochs=local.epochs,
        steps=local.steps,
        seed=derive_seed(protocol.seed, "batches", order.server_round, order.client),
        device=model.device,
        absent={"kept": None, "zero": 0.0, "masked": -math.inf}[local.absent_labels],
    )
    local_round = TrainContext(
        batches,
        local.lr,
        precision,
        seed,
        known,
        private_seed,
        local.weight_decay,
        order.client,
        order.server_round,
    )
    start = time.perf_counter()
    on_cpu = model.device.type == "cpu"
    with torch.random.fork_rng([] if on_cpu else None):  # for layers that draw from the global state, such as dropout
        if on_cpu:
            torch.default_generator.manual_seed(private_seed)  # as below, without looking for other devices
        else:
            torch.manual_seed(private_seed)
        trained = method.training.train(model, local_round)
    ended = time.perf_counter()
    body, residual = method.encode(trained.x, kept.residual, known, seed, private_seed)
    encoded = time.perf_counter()
    dense = model.dense.cpu().numpy()
    loss = trained.loss if method.flips is None else 0.0  # the server is to learn nothing but the mask
    update = Update(body, dense, loss, ended - start, encoded - ended)
    header = header_of(protocol, seed, len(samples), known.count)
    return Reply(write_upload(protocol, header, update, sent.dense), Kept(residual, sent.version))

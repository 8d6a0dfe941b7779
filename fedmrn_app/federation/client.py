"""The client's half of a round: from the server's order to the bytes of a payload."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedmrn_app.federation.downlink import DownlinkReader
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.protocol import Order, RunProtocol
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.federation.versions import Version
from fedmrn_app.layout import Float32Array
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import LocalSettings, Precision
from fedmrn_app.methods.method import TrainContext
from fedmrn_app.seeds import derive_seed, private_seed
from fedmrn_app.tasks.task import Samples, Task

_ABSENT_LOGITS = {"kept": None, "zero": 0.0, "masked": -math.inf}  # by the setting local.absent_labels


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between two rounds in which it trains.

    Attributes:
        kept: float32, what the last upload left out with error feedback, or what training kept; None for nothing.
        version: the global model as it was last sent; None without `downlink.memory`.
    """

    kept: Float32Array | None = None
    version: Version | None = None


@dataclass(frozen=True)
class Reply:
    """A client's payload of one round, and its new state.

    Attributes:
        payload: what it uploads, where each client uploads for itself.
        state: what it keeps.
        update: what the payload was made of, from which an input to a secure sum is made instead.
    """

    payload: bytes
    state: ClientState
    update: Update


def train_client(
    protocol: RunProtocol,
    model: FlatModel,
    task: Task,
    samples: Samples,
    order: Order,
    *,
    local: LocalSettings,
    precision: Precision = "float32",
    state: ClientState | None = None,
    reader: DownlinkReader | None = None,
) -> Reply:
    """Train one client for one round.

    Args:
        protocol: of the run, for the model's width.
        model: the model that is trained in place; its weights are overwritten.
        task: what is learned.
        samples: the client's samples, in memory.
        order: what the server sent.
        local: how the client trains.
        precision: arithmetic of the forward pass.
        state: what the client kept in its last round; None in its first.
        reader: reads the orders of this process, where it trains several clients.

    Raises:
        VersionError: the order needs a version that `state` does not hold.
        PayloadError: the order is malformed.
    """
    state = state or ClientState()
    method, seed = protocol.method, order.seed
    sent = (reader or DownlinkReader(downlink_of(protocol))).read(order, _submodel_mask(protocol, order), state.version)
    context = sent.context
    model.load(context.vector, sent.dense)
    own_seed = private_seed(protocol.seed, order.server_round, order.client)
    train_context = TrainContext(
        batches=_batches(protocol, task, samples, order, local, model.device),
        lr=local.lr,
        precision=precision,
        seed=seed,
        context=context,
        private_seed=own_seed,
        weight_decay=local.weight_decay,
        client=order.client,
        server_round=order.server_round,
        kept=state.kept,
    )
    start = time.perf_counter()
    with _seeded_torch(own_seed, model.device):
        trained = method.training.train(model, train_context)
    ended = time.perf_counter()
    body, residual = method.encode(trained.x, state.kept, context, seed, own_seed)
    encoded = time.perf_counter()
    dense = model.dense.cpu().numpy()
    only_mask = method.randomized_response is not None  # then nothing but the mask may leave the client
    loss = 0.0 if only_mask else trained.loss
    update = Update(body, dense, loss, ended - start, encoded - ended)
    header = header_of(protocol, seed, len(samples), context.count)
    kept = trained.kept if residual is None else residual
    payload = write_upload(protocol, header, update, sent.dense)
    return Reply(payload, ClientState(kept, sent.version), update)


def _submodel_mask(protocol: RunProtocol, order: Order) -> NDArray[np.bool_] | None:
    """Return the weights of the full model that the client holds, bool (d,); a narrower model is held as a whole."""
    selection, client, number = protocol.method.selection, order.client, order.server_round
    if selection.width(client, number) != 1:
        return None
    return selection.submodel_mask(protocol.layout, client, number, order.seed)


def _batches(
    protocol: RunProtocol, task: Task, samples: Samples, order: Order, local: LocalSettings, device: torch.device
) -> Batches:
    """Return the batches of the local steps, in an order that run, round and client determine."""
    return Batches(
        task,
        samples,
        batch_size=local.batch_size,
        epochs=local.epochs,
        steps=local.steps,
        seed=derive_seed(protocol.seed, "batches", order.server_round, order.client),
        device=device,
        absent=_ABSENT_LOGITS[local.absent_labels],
    )


@contextmanager
def _seeded_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's global generator, from which layers such as dropout draw, and restore it afterwards."""
    on_cpu = device.type == "cpu"
    with torch.random.fork_rng([] if on_cpu else None):
        if on_cpu:
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would look for other devices
        else:
            torch.manual_seed(seed)
        yield

"""What a client does with a message: say whom it stands for, and train for a round."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedmrn_app.arrays import from_array
from fedmrn_app.config import Config, load_config, parse_overrides, quote_override
from fedmrn_app.data.partitions import load_partitions
from fedmrn_app.data.sets import load_images, prepare_arrays
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.memory import keep_freed_memory
from fedmrn_app.methods import LocalTask
from fedmrn_app.noise import Float32Array, derive_seed
from fedmrn_app.uplink import FIELD, RECORD, DenseFormat, write_upload

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node stands for, and how many samples each of them has."""
    party = open_party(context)
    clients = hosted_clients(context, party.config)
    members = ConfigRecord()
    if clients:
        members["clients"] = list(clients)
        members["samples"] = [len(party.rows[client]) for client in clients]
    return Message(RecordDict({"members": members}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one round and reply with its payload, the only thing in the reply."""
    party = open_party(context)
    task = cast(ConfigRecord, message.content["task"])
    client, server_round, seed = (cast(int, task[key]) for key in ("client", "round", "seed"))
    arrays = cast(ArrayRecord, message.content["model"])
    kept = f"residual-{client}"
    residual = cast(ArrayRecord, context.state[kept])["x"].numpy() if kept in context.state else None
    payload, residual = party.train(
        client, server_round, seed, from_array(arrays["vector"]), from_array(arrays["dense"]), residual
    )
    if residual is not None:
        context.state[kept] = ArrayRecord({"x": Array(residual)})
    return Message(RecordDict({RECORD: ConfigRecord({FIELD: payload})}), reply_to=message)


class Party:
    """What a process keeps from message to message: the configuration, the mapped data, their partition, the model."""

    def __init__(self, overrides: tuple[str, ...]) -> None:
        keep_freed_memory()
        self.config = config = load_config(overrides)
        self.method = config.build_method()
        self.images = load_images(config.dataset, "train")
        self.rows = load_partitions(
            prepare_arrays(config.dataset),
            self.images.labels,
            config.partition,
            config.clients,
            derive_seed(config.seed, "partition"),
        )

        self._models: dict[float, tuple[FlatModel, Float32Array]] = {}

    def model(self, width: float = 1.0) -> tuple[FlatModel, Float32Array]:
        """The model to train, whose weights are whatever the last training left, and its first vector in the run."""
        if width not in self._models:
            model = self.config.build_flat_model(width)
            self._models[width] = model, self.method.first_vector(model)
        return self._models[width]

    def train(
        self,
        client: int,
        server_round: int,
        seed: int,
        vector: NDArray[Any],
        dense: Float32Array,
        residual: Float32Array | None = None,
    ) -> tuple[bytes, Float32Array | None]:
        """Train one client for one round.

        Args:
            client: number of the client.
            server_round: number of the round, from 1.
            seed: the 64-bit seed that the server gave the client for this round.
            vector: the global vector as the method packs it.
            dense: the global dense part, float32 (m,).
            residual: what the client kept of the round before, float32 (d,), with error feedback.

        Returns:
            The payload, and the residual to keep for the client's next round.
        """
        config = self.config
        width = self.method.width(client)
        model, first_vector = self.model(width)
        torch.set_num_threads(config.client_cpus)
        if self.method.feeds_errors_back and residual is None:
            residual = np.zeros(model.weights.numel(), np.float32)
        # a narrower model consists of what the client holds
        held = self.method.held(model.shapes, client, server_round, seed) if width == 1 else None
        common = self.method.receive(vector, model.shapes, first_vector, held)
        model.load(common.vector, dense)
        images = self.images.select(self.rows[client])
        batches = Batches(
            images,
            batch_size=config.local.batch_size,
            epochs=config.local.epochs,
            steps=config.local.steps,
            seed=derive_seed(config.seed, "batches", server_round, client),
            augmentation=config.dataset.augmentation,
            device=model.device,
        )
        weight_decay = config.local.weight_decay
        private_seed = derive_seed(config.seed, "method", server_round, client)
        task = LocalTask(batches, config.local.lr, config.precision, seed, common, private_seed, residual, weight_decay)
        with torch.random.fork_rng():  # for layers that draw from the global state, such as dropout
            torch.manual_seed(private_seed)
            update = self.method.train(model, task)
        payload = write_upload(
            self.method,
            update,
            model.dense.cpu().numpy(),
            DenseFormat(dense, model.dense_sizes, config.uplink.dense_bits),
            seed=seed,
            samples=len(images),
            weights=common.count,
        )
        return payload, update.residual


def open_party(context: Context) -> Party:
    """Return this process's party; the node's own `dataset-path` takes the place of the run's `dataset.path`."""
    overrides = parse_overrides(str(context.run_config["overrides"]))
    if path := context.node_config.get("dataset-path"):
        overrides = (*overrides, quote_override("dataset.path", str(path)))
    return _party(overrides)


_party = lru_cache(maxsize=1)(Party)


def hosted_clients(context: Context, config: Config) -> range:
    """The clients a node stands for: of n nodes, node i has client i and every n-th one after it."""
    return range(int(context.node_config["partition-id"]), config.clients, int(context.node_config["num-partitions"]))

"""Bytes and seconds of a secure sum beside Flower's SecAgg+ and homomorphic encryption, in one process.

    python -m scripts.benchmarks.secure_peers --weights 1000000 --clients 10
    python -m scripts.benchmarks.secure_peers --clients 100 --alone

SecAgg+ is Flower's own workflow and client mod, on an update of float32 weights in its default quantization, with all
clients as neighbours and 60 % of the shares needed. Homomorphic encryption is CKKS as TenSEAL has it, of degree 8192
with moduli of 60, 40 and 40 bits and scale 2^40; it is left out where TenSEAL is not installed. Seconds are of
processors; those of a client are the mean over clients, without training.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import time
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.serverapp import Grid

from fedmrn_app.layout import Float32Array
from fedmrn_app.wire.primitives import pack_bits, packed_bits
from scripts.benchmarks.secure import measure
from tests.local_nodes import LocalGrid

Row = tuple[
    str, float, float, float, str
]  # name, bytes up of a client, seconds of a client, seconds of the server, note


def ours(clients: int, weights: int) -> Row:
    """Return what a sum of masks takes."""
    one = measure(clients, weights, 0)
    return (
        "masks, secure sum",
        one.up.total() / clients,
        one.client_seconds / clients,
        one.seconds - one.client_seconds,
        "exact sum",
    )


def without_pads(clients: int, weights: int) -> Row:
    """Return what the same sum takes if the server sees each mask: a bit per weight."""
    masks = np.random.default_rng(clients).integers(0, 2, (clients, weights), np.uint8)
    begun = time.process_time()
    sent = [pack_bits(mask) for mask in masks]
    packing = time.process_time() - begun
    total = np.zeros(weights, np.uint8)
    begun = time.process_time()
    for data in sent:
        total += np.unpackbits(packed_bits(data, weights), count=weights, bitorder="little")
    adding = time.process_time() - begun
    if not np.array_equal(total, masks.sum(0)):
        raise SystemExit("the sum of the masks is wrong")
    return "the same masks, seen by the server", len(sent[0]), packing / clients, adding, "exact sum"


class _Clients:
    """Clients of SecAgg+: each has an update, and notes its seconds."""

    def __init__(self, updates: list[Float32Array]) -> None:
        self.updates = updates
        self.seconds = 0.0

    def __call__(self, message: Message, context: Context) -> Message:
        from flwr.client.mod import secaggplus_mod

        for name, record in message.content.config_records.items():  # the mod empties records that nodes share here
            message.content[name] = ConfigRecord(dict(record))
        begun = time.process_time()
        reply = secaggplus_mod(message, context, self._train)
        self.seconds += time.process_time() - begun
        return reply

    def _train(self, message: Message, context: Context) -> Message:
        from flwr.compat.common import recorddict_compat

        update = self.updates[int(context.node_config["partition-id"])]
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), 1, {})
        return Message(recorddict_compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def secagg_plus(updates: list[Float32Array]) -> Row:
    """Return what one round of Flower's workflow takes, and check its mean."""
    from flwr.compat.common import recorddict_compat
    from flwr.server import LegacyContext, SimpleClientManager
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow

    app, count = _Clients(updates), len(updates)
    grid = LocalGrid(app, count, {})
    manager = SimpleClientManager()
    for node in grid.get_node_ids():
        manager.register(GridClientProxy(node, cast(Grid, grid), 1))
    # the model that the server sends is left empty: downlinks are not compared
    strategy = FedAvg(min_fit_clients=count, min_available_clients=count)
    server = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    context = LegacyContext(server, strategy=strategy, client_manager=manager)
    context.state["config"] = ConfigRecord({"current_round": 1})
    context.state["parameters"] = recorddict_compat.parameters_to_arrayrecord(ndarrays_to_parameters([]), True)
    begun = time.process_time()
    SecAggPlusWorkflow(1.0, 0.6, max_weight=1.0)(cast(Grid, grid), context)
    seconds = time.process_time() - begun
    found = recorddict_compat.arrayrecord_to_parameters(cast(Any, context.state["parameters"]), True)
    (mean,) = parameters_to_ndarrays(found)
    error = float(np.abs(mean - np.mean(updates, 0)).max())
    if error > 1e-4:
        raise SystemExit(f"SecAgg+: the mean is off by {error:g}")
    note = f"largest error of the mean {error:.1e}"
    return "Flower's SecAgg+, float32", sum(grid.reply_bytes) / count, app.seconds / count, seconds - app.seconds, note


def ckks(updates: list[Float32Array]) -> Row:
    """Return what a mean of encrypted updates takes; the server adds, and a client decrypts."""
    tenseal: Any = importlib.import_module("tenseal")
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40])
    context.global_scale = 2**40
    count, total, size, encrypting, adding = len(updates), None, 0, 0.0, 0.0
    for update in updates:
        begun = time.process_time()
        data = tenseal.ckks_vector(context, update).serialize()
        encrypting += time.process_time() - begun
        size += len(data)
        begun = time.process_time()
        vector = tenseal.ckks_vector_from(context, data)
        total = vector if total is None else total + vector
        adding += time.process_time() - begun
    begun = time.process_time()
    mean = np.array(cast(Any, total).decrypt()) / count
    decrypting = time.process_time() - begun
    error = float(np.abs(mean - np.mean(updates, 0)).max())
    note = f"largest error of the mean {error:.1e}; one key for all clients"
    return "CKKS, float32", size / count, encrypting / count + decrypting, adding, note


def main() -> None:
    """Print the table of results/privacy/costs.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--alone", action="store_true", help="without SecAgg+ and CKKS")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = [one(arguments.clients, arguments.weights) for one in (without_pads, ours)]
    if not arguments.alone:
        random = np.random.default_rng(0)
        updates = [random.normal(0, 0.01, arguments.weights).astype(np.float32) for _ in range(arguments.clients)]
        rows.append(secagg_plus(updates))
        try:
            rows.append(ckks(updates))
        except ImportError:
            print("TenSEAL is not installed: pip install tenseal")
    print("| sum of | bytes up per client | bits per weight | client | server | |")
    print("|---|---|---|---|---|---|")
    for name, size, client, server, note in rows:
        bits = 8 * size / arguments.weights
        print(f"| {name} | {size:,.0f} | {bits:.2f} | {client:.3f} s | {server:.2f} s | {note} |")


if __name__ == "__main__":
    main()

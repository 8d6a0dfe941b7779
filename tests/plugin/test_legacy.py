"""Apps of Flower's legacy API: a `NumPyClient`, a strategy of `flwr.server`, and three lines for the plug-in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow

from fedmrn_app.errors import ConfigError
from fedmrn_app.plugin import Compressed, compress_uplink, compressed_grid
from tests.local_nodes import LocalGrid

FIRST = [np.zeros((60, 50), np.float32), np.zeros(50, np.float32)]


class Nodes(LocalGrid):
    """Nodes whose run has a number, by which the legacy API registers them."""

    run = SimpleNamespace(run_id=1)


class Client(NumPyClient):
    """Moves its arrays by numbers of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        draw = np.random.default_rng(self.number)
        moved = [one + draw.normal(0.1, 1, one.shape).astype(np.float32) for one in parameters]
        return moved, 10 + self.number, {"loss": 1.0}

    def evaluate(self, parameters: list[Any], config: Any) -> tuple[float, int, dict[str, Any]]:
        return float(np.square(parameters[0]).sum()), 1, {}


def run(mods: list[Any], *, compressed: bool) -> tuple[list[Any], Nodes]:
    """The arrays after two rounds, and the grid."""

    def client_fn(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    grid, kept = Nodes(ClientApp(client_fn=client_fn, mods=mods), 8, {}), []

    def keep(server_round: int, arrays: list[Any], config: Any) -> None:
        kept.append(arrays)

    strategy = FedAvg(
        initial_parameters=ndarrays_to_parameters(FIRST), evaluate_fn=keep, min_fit_clients=8, min_available_clients=8
    )
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=2), strategy=strategy)
    if compressed:
        with compressed_grid(cast(Grid, grid)) as short:
            DefaultWorkflow()(short, legacy)
    else:
        DefaultWorkflow()(cast(Grid, grid), legacy)
    return kept[-1], grid


def test_the_legacy_api_works_through_a_compressed_grid() -> None:
    plain, whole = run([], compressed=False)
    short, coded = run([compress_uplink], compressed=True)
    assert max(coded.reply_bytes) < max(whole.reply_bytes) / 8
    error = np.linalg.norm(short[0] - plain[0])
    assert 0 < error < 0.4 * np.linalg.norm(plain[0])
    np.testing.assert_allclose(short[1], plain[1], atol=0.2)


def test_strategies_of_the_legacy_api_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"flwr\.server, whose messages have no arrays") as refused:
        Compressed(cast(Any, FedAvg()))
    assert refused.value.code == "strategy"

"""The ServerApp: four clients with and without secure sums, a client that fails, one without the mod, and too few."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.plugin import Compressed

app = ServerApp()


class Some(FedAvg):
    """Asks some of the nodes, in the order of their ids."""

    nodes: Sequence[int] = ()

    def configure_train(self, server_round: int, arrays: Any, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return messages to these nodes."""
        record = super().configure_train(server_round, arrays, config, grid)
        return [message for message in record if message.metadata.dst_node_id in self.nodes]


def clients_of(grid: Grid, arrays: ArrayRecord) -> dict[int, int]:
    """Return the node of each client."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5)
    config = ConfigRecord({"fails": -1, "fails-too": -1})
    replies = grid.send_and_receive(strategy.configure_train(1, arrays, config, grid), timeout=200)
    # The plain training replies say who they are from; no mod is asked for anything.
    return {int(r.content.metric_records["metrics"]["client"]): r.metadata.src_node_id for r in replies}  # type: ignore[arg-type]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Write the largest differences, and end with an error."""
    random = np.random.default_rng(0)
    first = ArrayRecord({name: Array(random.normal(size=(40, 50)).astype(np.float32)) for name in ("w", "v")})
    nodes = clients_of(grid, first)
    found: dict[str, Any] = {"size": 4 * 2 * 40 * 50}
    before: list[Any] = [None]  # the state of the last strategy with secure sums, whose numbers of rounds go on

    def trained(clients: Sequence[int], rounds: int, secure: bool, fails: tuple[int, int] = (-1, -1)) -> ArrayRecord:
        strategy = Some(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5)
        strategy.nodes = [nodes[client] for client in clients]
        config = ConfigRecord({"fails": fails[0], "fails-too": fails[1]})
        used = Compressed(strategy, secure=True, state=before[0]) if secure else strategy
        result = used.start(grid, first, num_rounds=rounds, train_config=config)
        if isinstance(used, Compressed):
            before[0] = used.state()
        found["metrics"] = dict(result.train_metrics_clientapp.get(1) or {})
        return result.arrays

    def difference(one: ArrayRecord, other: ArrayRecord) -> float:
        return max(float(np.abs(one[name].numpy() - other[name].numpy()).max()) for name in other)

    found["all"] = difference(trained(range(4), 2, True), trained(range(4), 2, False))
    found["dropped"] = difference(trained(range(4), 1, True, (3, -1)), trained(range(3), 1, False))
    found["no mod"] = difference(trained(range(5), 1, True), trained(range(4), 1, False))
    trained(range(4), 1, True)
    Path(str(context.run_config["results"])).write_text(json.dumps(found))
    trained(range(5), 1, True, (2, 3))

"""The ServerApp: runs federated averaging, and records the time at which each round ends."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.config.build import build_module, resolve_from_data
from fedmrn_app.config.compose import compose_values

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    _, config, task = resolve_from_data(compose_values(json.loads(str(context.run_config["overrides"]))))
    ended: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        ended.append(time.time())
        return MetricRecord({})

    share = config.clients_per_round / config.clients
    strategy = FedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=config.clients)
    first = ArrayRecord(build_module(config, task).state_dict())
    strategy.start(grid, first, num_rounds=config.rounds, evaluate_fn=note)
    Path(str(context.run_config["results"])).write_text(json.dumps(ended))

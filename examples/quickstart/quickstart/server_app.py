"""The ServerApp: runs one of Flower's strategies, and evaluates the global model after each round."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedmrn_app.plugin import Compressed
from quickstart.task import STRATEGIES, evaluate, evaluation_rows, new_net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and write the accuracies to the file `results`, if there is one."""
    run = context.run_config
    net, rows = new_net(run), evaluation_rows(run)

    def evaluate_global(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(net, *rows)})

    strategy = STRATEGIES[run["strategy"]]()
    strategy = strategy if run["method"] == "plain" else Compressed(strategy, run["method"], alpha=run["alpha"])
    first, rounds = ArrayRecord(net.state_dict()), run["num-server-rounds"]
    result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate_global)
    if run["results"]:
        found = {"accuracy": [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]}
        found["parameters"] = sum(value.numel() for value in net.state_dict().values())
        Path(run["results"]).write_text(json.dumps(found))

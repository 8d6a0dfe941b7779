"""The ServerApp: runs federated averaging, and evaluates the global model after each round."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.plugin import Compressed
from lightning_digits.task import Digits, evaluate

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and write the accuracies to the file `results`, if there is one."""
    run = context.run_config
    model = Digits(run)

    def evaluate_global(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(model)})

    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = strategy if run["method"] == "plain" else Compressed(strategy, run["method"], alpha="auto")
    first, rounds = ArrayRecord(model.state_dict()), run["num-server-rounds"]
    result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate_global)
    if run["results"]:
        found = {"accuracy": [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]}
        found["parameters"] = sum(value.numel() for value in model.state_dict().values())
        Path(run["results"]).write_text(json.dumps(found))

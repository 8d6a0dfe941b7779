"""The ServerApp: averages the models, and evaluates the mean after each round."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.plugin import Compressed
from sklearn_digits.task import arrays_of, new_model, set_arrays, test_rows

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and write the accuracies to the file `results`, if there is one."""
    run, model = context.run_config, new_model(1)
    x, y = test_rows()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        set_arrays(model, arrays.to_numpy_ndarrays())
        return MetricRecord({"accuracy": float(model.score(x, y))})

    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = Compressed(strategy) if run["compressed"] else strategy
    first = ArrayRecord(arrays_of(model))
    result = strategy.start(grid, first, num_rounds=run["num-server-rounds"], evaluate_fn=evaluate)
    if run["results"]:
        found = [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]
        Path(run["results"]).write_text(json.dumps({"accuracy": found}))

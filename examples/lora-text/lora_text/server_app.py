"""The ServerApp: runs federated averaging of the adapters, and evaluates them after each round."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from fedmrn_app.plugin import Compressed
from lora_text.task import evaluate, new_model, sentences

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds, and write the accuracies to the file `results`, if there is one."""
    config = context.run_config
    model, rows = new_model(config), sentences(config, -1, 2000)

    def evaluate_global(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        set_peft_model_state_dict(model, arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": evaluate(model, *rows)})

    strategy = FedAvg(fraction_evaluate=0.0)
    if config["method"] == "fedmrn":
        strategy = Compressed(strategy, "fedmrn", alpha=config["alpha"], bits=config["bits"])
    elif config["method"] != "plain":
        strategy = Compressed(strategy, config["method"])
    first, rounds = ArrayRecord(get_peft_model_state_dict(model)), config["num-server-rounds"]
    result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate_global)
    if config["results"]:
        found = {"accuracy": [metrics["accuracy"] for metrics in result.evaluate_metrics_serverapp.values()]}
        found["parameters"] = sum(value.numel() for value in first.to_torch_state_dict().values())
        Path(config["results"]).write_text(json.dumps(found))

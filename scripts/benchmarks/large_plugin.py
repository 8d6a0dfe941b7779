"""The plug-in on a transformer of 124 million weights, beside plain Flower: seconds and memory, round by round.

Usage: python -m scripts.benchmarks.large_plugin [--method default] [--lora] [--rounds 2] [--layers 12] [--repeats 1]

The model is GPT-2 as `transformers` makes it from its configuration, without a download. Two clients of Flower take a
step each round, in one process. Flower's FedAvg runs plain and with the plug-in, alternately. `--lora` trains adapters
of rank 8 with `peft`.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.flower.local_grid import LocalGrid
from fedmrn_app.plugin import Compressed, compress_uplink

_PLAIN = "plain Flower"
_CLIENTS, _TOKENS, _BATCH = 2, 32, 2


def new_model(layers: int, *, lora: bool) -> Any:
    """Return GPT-2 with initial weights that are the same in each call."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers))
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))


def trained_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the parameters that are trained, by name; tied ones once."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def client_app(model: Any, mods: list[Any], seconds: list[float]) -> ClientApp:
    """Return an app whose clients take a step of SGD, and note how long that takes."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        named = trained_state(model)
        record = message.content.array_records["arrays"]
        with torch.no_grad():
            for name, array in record.items():
                named[name].copy_(torch.from_numpy(array.numpy()))
        start = time.process_time()
        generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        tokens = torch.randint(0, 1000, (_BATCH, _TOKENS), generator=generator)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
        metrics = MetricRecord({"num-examples": _BATCH, "loss": float(loss)})
        content = RecordDict({"arrays": ArrayRecord(dict(named)), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def run(method: str, layers: int, rounds: int, *, lora: bool) -> dict[str, float]:
    """Return the processor's seconds of a run per client and round: of training, and of all else.

    Args:
        method: `plain Flower`, `default` for what the plug-in chooses, or the plug-in's method.
        layers: of the transformer.
        rounds: of the run.
        lora: whether adapters are trained.
    """
    plain = method == _PLAIN
    model, trained = new_model(layers, lora=lora), list[float]()
    app = client_app(model, [] if plain else [compress_uplink], trained)
    inner = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=_CLIENTS, min_available_nodes=_CLIENTS)
    strategy: Any = inner if plain else Compressed(inner, None if method == "default" else method)
    state = trained_state(model)
    start = time.process_time()
    with LocalGrid(app, _CLIENTS) as grid:
        result = strategy.start(grid, initial_arrays=ArrayRecord(dict(state)), num_rounds=rounds)
    each = 1 / (_CLIENTS * rounds)
    losses = [float(metrics["loss"]) for metrics in result.train_metrics_clientapp.values()]
    uplink = result.train_metrics_clientapp[rounds].get("uplink_bytes", 4.0 * sum(v.numel() for v in state.values()))
    return {
        "weights": sum(value.numel() for value in state.values()),
        "training": sum(trained) * each,
        "all else": (time.process_time() - start - sum(trained)) * each,
        "uplink": float(uplink),
        "last loss": losses[-1],
        "peak, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The plug-in on a large transformer beside plain Flower.")
    parser.add_argument("--method", default="default")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for _ in range(arguments.repeats):
        for method in (_PLAIN, arguments.method):  # plain first: the peak of the process never falls
            found = run(method, arguments.layers, arguments.rounds, lora=arguments.lora)
            print(json.dumps({"method": method, "lora": arguments.lora, **found}), flush=True)


if __name__ == "__main__":
    main()

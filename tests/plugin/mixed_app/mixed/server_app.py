"""The ServerApp: a strategy with a start of its own, then a loop without a strategy, then rounds that fail."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.plugin import Compressed, compressed_grid
from mixed.client_app import along  # type: ignore[import-not-found]

app = ServerApp()


class OwnStart(FedAvg):
    """Trains and evaluates for some rounds; a client fails in the second."""

    def start(self, grid: Any, arrays: ArrayRecord, rounds: int) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return what was seen in each round."""
        seen = []
        for number in range(1, rounds + 1):
            config = ConfigRecord({"fails": "one" if number == 2 else "none"})
            replies = list(grid.send_and_receive(self.configure_train(number, arrays, config, grid), timeout=200))
            found = self.aggregate_train(number, replies)[0]
            assert found is not None
            arrays = found
            messages = self.configure_evaluate(number, arrays, ConfigRecord(), grid)
            results = [reply.content for reply in grid.send_and_receive(messages, timeout=200)]
            seen.append({
                "uplinks": sorted(r.content["metrics"]["uplink_bytes"] for r in replies if not r.has_error()),
                "errors": [reply.error.reason for reply in replies if reply.has_error()],
                "global": along(arrays),
                "clients": [content.metric_records["metrics"]["along"] for content in results],
            })  # fmt: skip
        return seen


def own_loop(grid: Grid, arrays: ArrayRecord) -> dict[int, float]:
    """Return how far each client has come, by the bytes of its reply."""
    with compressed_grid(grid, downlink="grid") as compressed:
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"fails": "none"})})
        ids = set(compressed.push_messages([Message(content, node, "train") for node in compressed.get_node_ids()]))
        replies: list[Message] = []
        deadline = time.monotonic() + 200
        while ids and time.monotonic() < deadline:
            pulled = compressed.pull_messages(ids)
            replies += pulled
            ids -= {reply.metadata.reply_to_message_id for reply in pulled}
            time.sleep(0.2)
    return {
        int(r.content.metric_records["metrics"]["uplink_bytes"]): along(r.content.array_records["arrays"])  # type: ignore[arg-type]
        for r in replies
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Write what was seen, and end with an error."""
    first = ArrayRecord({"w": Array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))})
    usual = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    own = OwnStart(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    found = {"first": along(first), "size": 4 * 64 * 64}
    rounds = Compressed(own, "eden", downlink="grid").start(grid, first, rounds=3)
    loop = own_loop(grid, first)
    Path(str(context.run_config["results"])).write_text(json.dumps({**found, "rounds": rounds, "loop": loop}))
    Compressed(usual).start(grid, first, num_rounds=5, train_config=ConfigRecord({"fails": "all"}))

"""Apps without PyTorch: the plug-in imports none, and needs what `requirements/plugin.txt` lists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.paths import ROOT

# Blocks PyTorch, and runs two rounds of an app of NumPy arrays with a few methods.
APP = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("PyTorch is blocked")


sys.meta_path.insert(0, Blocked())
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedmrn_app.plugin import Compressed, compress_uplink
from tests.local_nodes import LiveNodes


class Nodes(LiveNodes):
    def send_and_receive(self, messages, timeout=None):
        return [self.deliver(message) for message in messages]


def app(message, context):
    moves = {"coef": 0.1 * np.abs(np.random.default_rng(message.metadata.dst_node_id).normal(0, 1, (10, 64)))}
    sent = message.content["arrays"].items()
    arrays = {name: Array(array.numpy() + moves.get(name, 0.1)) for name, array in sent}
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)


def node(message, context):
    return compress_uplink(message, context, app)


first = ArrayRecord({"coef": Array(np.zeros((10, 64))), "intercept": Array(np.zeros(10))})
for options in ({}, {"options": {"bits": 2.0}}, *({"method": name} for name in ("eden", "drive", "signsgd", "topk",
                "terngrad", "quantized", "fedavg")), {"downlink": "grid"}, {"downlink": "quantized"}):
    strategy = Compressed(FedAvg(fraction_evaluate=0.0, min_available_nodes=3, min_train_nodes=3), **options)
    nodes = Nodes(node, (1, 2, 3), {})
    result = strategy.start(nodes, first, num_rounds=2)
    assert not nodes.failures, nodes.failures
    assert abs(float(result.arrays["intercept"].numpy().mean()) - 0.2) < 0.02, options
    least = 0.0 if options.get("method") == "topk" else 0.05  # Top-k sends a hundredth of the elements
    assert float(result.arrays["coef"].numpy().mean()) > least, options
assert "torch" not in sys.modules
try:
    from fedmrn_app.plugin import learn_masks
except ImportError:
    print("done")
"""


@pytest.mark.slow
def test_codecs_and_strategies_work_without_pytorch(tmp_path: object) -> None:
    words = [sys.executable, "-c", APP]
    environment = {"FEDMRN_STATE": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": ""}
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert found.stdout.split()[-1:] == ["done"], found.stderr[-2000:]


def test_the_list_of_requirements_is_that_of_the_package_without_pytorch() -> None:
    """With the same ranges, except that of Flower, which is wider for the plug-in."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [line for line in (ROOT / "requirements" / "plugin.txt").read_text().splitlines() if line[:1] != "#"]
    names = {re.split(r"[<>=]", line)[0] for line in listed}
    assert "torch" not in names
    assert {line for line in listed if not line.startswith("flwr")} <= set(project["dependencies"])

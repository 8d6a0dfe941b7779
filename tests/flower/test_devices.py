"""Real SuperNodes with rows of their own: who fits trains, who does not is left out by name."""

import json
import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fedmrn_app.system.processes import command
from tests.supernodes import Federation

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def test_devices_with_rows_of_their_own(federation: Federation) -> None:
    folder = federation.folder
    digits = load_digits()
    x = np.kron((digits.images * 15.9).astype(np.uint8), np.ones((2, 2), np.uint8))  # (1797, 16, 16)
    y = digits.target
    np.savez(folder / "server.npz", x=x[:100], y=y[:100], x_test=x[1500:], y_test=y[1500:])
    np.savez(folder / "good.npz", x=x[100:600], y=y[100:600])
    for row in range(600, 800):
        images = folder / "images" / str(y[row])
        images.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[row]).save(images / f"{row}.png")
    np.savez(folder / "small.npz", x=digits.images[800:900].astype(np.uint8), y=y[800:900])
    np.savez(folder / "labels.npz", x=x[900:1000], y=y[900:1000] + 5)
    np.savez(folder / "empty.npz", x=x[:0], y=y[:0])
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1, 2]] * 3}), folder / "unlabelled.parquet")
    places = ("good.npz", "images", "small.npz", "labels.npz", "empty.npz", "unlabelled.parquet")
    for number, place in (*enumerate(places), (0, "good.npz")):  # the last one's number is taken
        federation.node(number, f'data-path="{folder / place}"')
    overrides = (
        f"dataset=own dataset.path={folder / 'server.npz'} clients=6 clients_per_round=6 rounds=3 local.epochs=1"
        " downlink.dtype=grid downlink.memory=true"
    )
    run_dir = federation.run(overrides, timeout=300)
    log = (run_dir / "run.log").read_text()
    assert "client 2 does not take part: data-path=small.npz: images are 1x8x8, the run's are 1x16x16" in log
    assert "client 3 does not take part: data-path=labels.npz: row " in log
    assert "the run's classes are 0 to 9" in log
    assert "client 4 does not take part: data-path=empty.npz: " in log
    assert "client 5 does not take part: data-path=unlabelled.parquet: " in log
    assert str(folder / "small.npz") not in log  # where a node has its data stays with the node
    assert len(re.findall(r"node \d+: client 0 is already on node \d+; this node is asked only if", log)) == 1
    assert "clients_per_round=6: only 2 clients take part" in log
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["rounds"], summary["clients_failed"]) == (3, 0)
    assert (summary["clients_hosted"], summary["clients"]) == (2, 6)
    assert summary["parameters"] > 0
    assert 0 < summary["last_downlink_bits_per_parameter"] < 4


def test_code_runs_on_nodes_that_allow_it(federation: Federation) -> None:
    (federation.folder / "brought.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes, hidden):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, classes))\n"
    )
    federation.node(0, 'num-partitions=2 allow-targets="elsewhere. brought."')
    federation.node(1, "num-partitions=2")
    overrides = "clients=2 clients_per_round=2 rounds=1 model=own model._target_=brought.Net model.hidden=7"
    run_dir = federation.run(overrides, timeout=240)
    log = (run_dir / "run.log").read_text()
    assert "client 1 does not take part: model._target_=brought.Net: this node runs code from " in log
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["rounds"], summary["clients_failed"]) == (1, 0)
    assert summary["clients_hosted"] == 1
    assert summary["parameters"] == 64 * 7 + 7 + 7 * 10 + 10


EVIL_CLIENT = """\
from pathlib import Path
Path({mark!r}).touch()
from flwr.clientapp import ClientApp
app = ClientApp()
"""
EVIL_SERVER = """\
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.5)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    (reply,) = grid.send_and_receive(asked, timeout=90)
    Path({answer!r}).write_text(reply.error.reason if reply.has_error() else "ran")
"""


def test_another_app_of_the_server_does_not_run_on_a_device(federation: Federation) -> None:
    folder = federation.folder
    mark, answer, evil = folder / "imported", folder / "answer", folder / "evil"
    (evil / "evil_app").mkdir(parents=True)
    (evil / "evil_app" / "__init__.py").write_text("")
    (evil / "evil_app" / "client.py").write_text(EVIL_CLIENT.format(mark=str(mark)))
    (evil / "evil_app" / "server.py").write_text(EVIL_SERVER.format(answer=str(answer)))
    (evil / "pyproject.toml").write_text(
        '[project]\nname = "train"\nversion = "1.0.0"\ndescription = ""\nlicense = "Apache-2.0"\ndependencies = []\n'
        '[tool.flwr.app]\npublisher = "evil"\nfab-include = ["evil_app/**/*.py"]\n'
        '[tool.flwr.app.components]\nserverapp = "evil_app.server:app"\nclientapp = "evil_app.client:app"\n'
    )

    def run() -> str:
        answer.unlink(missing_ok=True)
        federation.start("evil", command("flwr"), "run", str(evil), "ours", "--stream").wait(150)
        return answer.read_text()

    node = federation.node(0, "num-partitions=1")
    reason = run()
    assert "only the installed app of fedmrn runs here" in reason
    assert not mark.exists()
    node.terminate()
    node.wait(20)
    (word,) = re.findall(r"evil/train@[0-9a-f]{64}", reason)
    federation.node(0, f'num-partitions=1 allow-apps="{word}"')
    run()
    assert mark.exists()  # its owner has allowed this bundle

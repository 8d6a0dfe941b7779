"""Evaluation where the data are: clients' tallies beside the server's test split, and what follows from them."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from rich.console import Console

from fedmrn_app import client_app
from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.resolved import pack_config
from fedmrn_app.environment import STATE_FOLDER
from fedmrn_app.errors import FedMRNError, PayloadError, RunError
from fedmrn_app.exchange.messages import payload_content
from fedmrn_app.exchange.orders import order_content
from fedmrn_app.exchange.timeouts import RoundTimeout
from fedmrn_app.federation.downlinks import downlink_of
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.federation.tallies import Evaluated, Tally, add_tallies
from fedmrn_app.flower.client_evaluation import ClientEvaluation
from fedmrn_app.flower.host_table import host_table
from fedmrn_app.flower.local_run import run_local
from fedmrn_app.results.trained import load_trained
from fedmrn_app.runtime.data_command import show_data
from tests.flower.support import FakeGrid, Reply
from tests.one_node import asking, first_round, node, small

SMALL = ("rounds=3", "clients=4", "clients_per_round=3", "local.steps=2", "simulation.processes=0")


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(STATE_FOLDER, str(tmp_path / "state"))
    client_app._worker.cache_clear()


def run(folder: Path, *overrides: str) -> tuple[dict[str, Any], list[dict[str, str]], list[str]]:
    """Run in this process; return the summary, the rows, and the lines of the log."""
    lines: list[str] = []
    values, config, _ = resolve_from_data(compose_values((*SMALL, *overrides)))
    run_local(values, config, folder, on_line=lines.append)
    with (folder / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return json.loads((folder / "summary.json").read_text()), rows, lines


def test_clients_find_out_what_a_plain_loop_does(tmp_path: Path) -> None:
    overrides = ("evaluation.on=both", "partition=dirichlet", "strategy=fedavg", "model=mlp", "rounds=2")
    summary, rows, _ = run(tmp_path / "run", *overrides)
    worker = build_worker(resolve_from_data(compose_values((*SMALL, *overrides)))[1])
    expected: list[list[float]] = []

    def note(state: Any, report: Any) -> None:
        samples = {client: worker.sample_count(client) for client in range(4)}
        opened = OpenRound(worker.model()[1], report.number + 1, state, samples)
        tallies = [worker.evaluate(opened.order(client))[0] for client in range(4)]
        total = add_tallies(tallies, (2,))
        each = [tally.counts[0] / tally.counts[1] for tally in tallies]
        expected.append([total.counts[0] / total.counts[1], float(np.mean(each)), min(each), total.loss / total.rows])

    run_rounds(worker, on_round=note)
    names = ("clients_accuracy", "mean_accuracy", "worst_accuracy", "clients_loss")
    assert np.allclose([[float(row[name]) for name in names] for row in rows], expected, rtol=1e-6)
    assert [summary["final_clients_accuracy"], summary["final_mean_accuracy"]] == pytest.approx(expected[-1][:2])
    assert summary["devices"]["client 2"]["rows"] == len(worker.rows.held_out(2))
    with (tmp_path / "run" / "evaluation.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2 * 4


def test_where_evaluation_is_done_does_not_change_the_weights(tmp_path: Path) -> None:
    both, _, _ = run(tmp_path / "both", "evaluation.on=both")
    clients, rows, _ = run(tmp_path / "clients", "evaluation.on=clients", "evaluation.clients=2", "evaluation.every=2")
    assert both["weights_sha256"] == clients["weights_sha256"]
    assert (both["evaluated_on"], clients["evaluated_on"]) == ("test", "clients")
    assert [row["clients_evaluated"] for row in rows] == ["nan", "2.0", "2.0"]
    assert rows[0]["accuracy"] == "nan"
    assert rows[2]["accuracy"] == rows[2]["clients_accuracy"]
    assert clients["final_accuracy"] == clients["final_clients_accuracy"]


def test_the_model_travels_once_for_evaluation_and_training(tmp_path: Path) -> None:
    all_train = ("evaluation.on=clients", "clients_per_round=4", "rounds=2")
    kept, rows, _ = run(tmp_path / "kept", *all_train)
    _, whole, _ = run(tmp_path / "whole", *all_train, "downlink.memory=false")
    assert all(float(row["downlink_bytes"]) < 400 for row in rows[1:])
    assert all(float(row["downlink_bytes"]) > 2000 for row in whole[1:])
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in whole]
    row = rows[-1]
    sent = [float(row[f"{part}_bytes"]) for part in ("uplink", "downlink", "evaluation_uplink", "evaluation_downlink")]
    assert float(row["total_bits_per_parameter"]) == pytest.approx(8 * sum(sent) / kept["parameters"])


@pytest.mark.slow
def test_the_best_round_by_clients_is_kept_and_a_run_that_gets_worse_ends(tmp_path: Path) -> None:
    summary, rows, lines = run(
        tmp_path, "evaluation.on=both", "evaluation.by=clients", "evaluation.keep=best", "evaluation.patience=1",
        "rounds=12", "local.lr=1", "local.steps=10", "strategy=fedavg", "model=mlp",
    )  # fmt: skip
    reached = [float(row["clients_accuracy"]) for row in rows]
    best = max(range(len(reached)), key=lambda place: (reached[place], -place))
    assert len(rows) == best + 2 < 12
    assert summary["best_round"] == best + 1
    assert any(line.startswith("evaluation.patience=1: the run ends after round") for line in lines)
    trained, last = load_trained(tmp_path), load_trained(tmp_path, last=True)
    assert (trained.round, last.round) == (best + 1, best + 2)
    _, config, _ = resolve_from_data(compose_values((*SMALL, "evaluation.on=both", "strategy=fedavg", "model=mlp")))
    worker = build_worker(config)
    correct = rows_held = 0
    for client in range(4):
        held = worker.rows.held_out(client)
        raw_x, raw_y = (torch.from_numpy(values) for values in held.take(slice(None)))
        x, y = worker.task.batch(raw_x, raw_y)
        correct += int((trained.model(x).argmax(1) == y).sum())
        rows_held += len(held)
    assert correct / rows_held == pytest.approx(reached[best])
    (tmp_path / "best.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError) as caught:
        load_trained(tmp_path)
    assert caught.value.code == "no-best"


class Federation:
    """Clients with nodes of their own on a made-up grid, and the server's evaluation of one model."""

    def __init__(self, *overrides: str, spoil: Any = None) -> None:
        self.values = small("evaluation.on=clients", "model=mlp", *overrides)
        _, self.config, _ = resolve_from_data(self.values)
        self.worker = build_worker(self.config)
        self.lines: list[str] = []
        contexts = {client: node(partition_id=client) for client in range(self.config.clients)}
        for context in contexts.values():
            client_app.query(asking(self.values), context)

        def answer(client: int, message: Message) -> Reply:
            if spoil is not None and (reply := spoil(client, message)) is not None:
                return reply  # type: ignore[no-any-return]
            return client_app.evaluate(message, contexts[client])

        behaviours = {client: (lambda message, client=client: answer(client, message)) for client in contexts}
        self.grid = FakeGrid(behaviours)  # type: ignore[arg-type]
        offers = [(client, np.array([client]), np.array([10])) for client in contexts]
        table = host_table(self.config.clients, offers)
        self.directory: Any = type(
            "D", (), {"current": table, "available": lambda _: table, "roster": lambda _: None}
        )()
        self.directory.report = self.lines.append

    def evaluate(self) -> Evaluated | None:
        _, protocol = self.worker.model()
        evaluation = ClientEvaluation(
            protocol=protocol, config=pack_config(self.values, "ab12"), shape=(2,), directory=self.directory,
            channel=self.grid.channel(1 << 20), versions=downlink_of(protocol).new_versions(), count=None,
            secure=self.config.privacy.secure_aggregation, timeout=RoundTimeout(10),
        )  # fmt: skip
        return evaluation.run(protocol.begin(), 0)


def test_a_secure_sum_of_tallies_equals_the_plain_one_and_tells_no_client_s() -> None:
    plain, secure = Federation().evaluate(), Federation("privacy.secure_aggregation=true").evaluate()
    assert plain is not None
    assert secure is not None
    assert isinstance(plain.total, Tally)
    assert isinstance(secure.total, Tally)
    assert plain.total.steps().tolist() == secure.total.steps().tolist()
    assert plain.total.rows > 0
    assert (sorted(plain.tallies), dict(secure.tallies)) == ([0, 1, 2, 3, 4], {})


def test_clients_that_fail_are_named_and_the_others_count() -> None:
    def spoil(client: int, message: Message) -> Any:
        if client == 1:
            return Message(payload_content(b"short"), reply_to=message)
        if client == 3:
            return Message(payload_content(b"\xff" * 40), reply_to=message)
        return None

    federation = Federation(spoil=spoil)
    found = federation.evaluate()
    assert found is not None
    assert sorted(found.tallies) == [0, 2, 4]
    assert "2 of 5 clients have not evaluated" in federation.lines[0]
    assert "client 1: the tally has 5 bytes, expected 40" in federation.lines[0]


def test_a_round_that_nobody_evaluates_has_no_metric_and_the_log_says_why() -> None:
    federation = Federation(spoil=lambda client, message: Message(
        payload_content(b""), reply_to=message
    ))  # fmt: skip
    assert federation.evaluate() is None
    assert len(federation.lines) == 1


def test_a_node_evaluates_only_in_a_run_that_says_so_and_only_its_own_clients() -> None:
    for overrides, refused in ((("evaluation.on=server",), "evaluation"), (("evaluation.on=clients",), "client")):
        client_app._worker.cache_clear()
        values, context = small(*overrides), node(partition_id=1, num_partitions=2)
        client_app.query(asking(values), context)
        order = first_round(build_worker(resolve_from_data(values)[1])).order(2)
        with pytest.raises(PayloadError) as caught:
            client_app.evaluate(asking(None, "evaluate", order_content(order, None, None)), context)
        assert caught.value.code == refused


def test_a_device_without_rows_to_evaluate_on_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).standard_normal((20, 3)), y=np.arange(20) % 2)
    shapes = ("dataset=own", "dataset.form=table", "dataset.features=3", "dataset.classes=2", "clients=3")
    values, _, _ = resolve_from_data(
        compose_values((*shapes, "clients_per_round=3", "evaluation.on=clients", "evaluation.holdout=null"))
    )
    reply = client_app.query(asking(values), node(partition_id=0, data_path=str(tmp_path / "own.npz")))
    assert "evaluation.holdout=0.2" in str(reply.content.config_records["hosted"]["refusal"])


def write_sites(folder: Path, *, center: float = 0.0, scale: float = 1.0) -> list[str]:
    """Write the rows of three sites, which two classes share, and return their files."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((2, 3)) * 2
    places = []
    for site in range(3):
        y = np.arange(60) % 2
        np.savez(folder / f"{site}.npz", x=center + scale * (centers[y] + random.standard_normal((60, 3))), y=y)
        places.append(str(folder / f"{site}.npz"))
    return places


def test_clients_with_places_of_their_own_train_and_evaluate_without_any_row_on_the_server(tmp_path: Path) -> None:
    places = write_sites(tmp_path)
    summary, rows, lines = run(
        tmp_path / "run", "dataset=own", "dataset.form=table", "dataset.features=3", "dataset.classes=2",
        "clients=3", f"simulation.data=[{','.join(places)}]", "evaluation.on=clients", "model=mlp",
        "model.hidden=[8]", "local.steps=20", "strategy=fedavg",
    )  # fmt: skip
    assert summary["final_accuracy"] > 0.7
    assert sorted(summary["devices"]) == ["client 0", "client 1", "client 2"]
    assert all(values["rows"] == 12 for values in summary["devices"].values())
    with pytest.raises(FedMRNError):  # the server has none
        run(
            tmp_path / "other", "dataset=own", "dataset.form=table", "dataset.features=3", "dataset.classes=2",
            "clients=3", f"simulation.data=[{','.join(places)}]",
        )  # fmt: skip
    assert not math.isnan(float(rows[0]["accuracy"]))
    assert lines


def test_statistics_that_sites_share_stand_for_rows_of_the_server(tmp_path: Path) -> None:
    places = write_sites(tmp_path, center=5e4, scale=300)  # numbers that no model learns as they are
    for place in places:
        file = tmp_path / "sites" / f"{Path(place).stem}.json"
        show_data([place, "--statistics", str(file)], Console(quiet=True))
    words = (
        f"simulation.data=[{','.join(places)}]", "evaluation.on=clients", "model=mlp", "model.hidden=[8]",
        "local.steps=20", "strategy=fedavg", "clients=3",
    )  # fmt: skip
    summary, _, _ = run(tmp_path / "run", "dataset=own", f"dataset.statistics={tmp_path / 'sites'}", *words)
    assert summary["final_accuracy"] > 0.7

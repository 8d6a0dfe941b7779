"""The model card of a finished run."""

from pathlib import Path

import yaml

from fedmrn_app.config.build import task_of
from fedmrn_app.config.compose import compose_values
from fedmrn_app.results.model_card import model_card, write_card


def summary(**metrics: float) -> dict[str, object]:
    facts = {
        "metric": next(iter(metrics)), "strategy": "fedmrn", "partition": "iid", "evaluated_on": "test", "rounds": 7,
        "parameters": 4810, "uplink_bytes_per_client_round": 402.5, "downlink_bytes_per_client_round": 600.0,
        "fedavg_uplink_bytes_per_client_round": 19240, "weights_sha256": "0123456789abcdef",
    }  # fmt: skip
    return {**facts, **{f"{which}_{name}": value for which in ("final", "best") for name, value in metrics.items()}}


def test_a_card_has_what_a_hub_reads_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    words = ["dataset=own", "dataset.path='/home/me/secret folder/prices.csv'", "task=regression", "rounds=7"]
    options = ["dataset.form=table", "dataset.features=4", "dataset.target_mean=5", "dataset.target_std=2"]
    values = compose_values([*words, *options])
    task = task_of(values["task"], values["dataset"])
    write_card(tmp_path, values, task, summary(r2=0.5, rmse=3.25, mae=2.0), words)
    text = (tmp_path / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["pipeline_tag"] == "tabular-regression"
    (result,) = facts["model-index"][0]["results"]
    assert {one["type"]: one["value"] for one in result["metrics"]} == {"r2": 0.5, "rmse": 3.25, "mae": 2.0}
    assert "fedmrn dataset=own dataset.path=prices.csv task=regression rounds=7" in body
    assert "secret" not in text
    assert "402 bytes (FedAvg: 19,240)" in body
    assert 'load_file("model.safetensors")' in body


def test_a_card_is_about_the_model_that_was_kept() -> None:
    values = compose_values(["evaluation.keep=best"])
    text = model_card(values, task_of(values["task"], values["dataset"]), summary(accuracy=0.9), [])
    assert 'load_trained("best.safetensors")' in text
    assert "| best accuracy on the test split | 0.9000 |" in text
    assert "pipeline_tag: image-classification" in text

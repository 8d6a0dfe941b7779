"""The output step of sub-models against the formula of Algorithms 1 and 2, worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import RunError
from fedmrn_app.federation.worker import Worker
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.submodel_parts import PartOfModel
from fedmrn_app.results.resume import resumable
from fedmrn_app.results.run_folder import RunFolder
from tests.helpers import final_state
from tests.run_folder import VALUES, model, row, state

LR = 0.2
BASE = ("clients=3", "clients_per_round=3", "local.epochs=1", "local.batch_size=50", "model=mlp", "model.hidden=[20]",
        "strategy=submodel", "strategy.capacities=[1.0,0.5,0.25]")  # fmt: skip


def masked_gradient(worker: Worker, client: int, weights: Float32Array, mask: np.ndarray) -> Float32Array:
    """m * grad f(m * w) of the mean loss of all the client's samples."""
    model, protocol = worker.model()
    model.load(weights * mask.astype(np.float32), protocol.begin().dense)
    x, y = (torch.from_numpy(values) for values in worker.samples_of(client).take(slice(None)))
    model.zero_grads()
    torch.autograd.backward(functional.cross_entropy(model.module.train()(worker.task.batch(x, y)[0]), y))
    gradient: Float32Array = model.weight_grads.numpy() * mask.astype(np.float32)
    return gradient


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        (("strategy.masking=random",), None),
        (("strategy.masking=static",), None),
        (("strategy.windows=disjoint",), {1.0: 1, 0.5: 2, 0.25: 4}),
        (("strategy.windows=shuffled",), {1.0: 1, 0.5: 4, 0.25: 4}),
        (("strategy.windows=shuffled", "strategy.starts=6"), {1.0: 1, 0.5: 6, 0.25: 6}),
    ],
)
def test_it_is_the_mean_of_the_masked_gradients(options: tuple[str, ...], windows: dict[float, int] | None) -> None:
    worker = build_worker(
        load_config((*BASE, *options, "rounds=1", f"strategy.output_lr={LR}", "downlink.dtype=float32"))
    )
    part, protocol = worker.method.selection, worker.model()[1]
    assert isinstance(part, PartOfModel)
    first, samples = protocol.initial, np.array([worker.sample_count(client) for client in range(3)])
    expected = first.astype(np.float64)
    for client in range(3):
        seed = worker.method.client_seed(0, 1, client)
        masks = list(part.output_masks(protocol.layout, client, 1, seed))
        if windows is not None:
            assert len(masks) == windows[part.capacity(client, 1)]
            assert np.logical_or.reduce(masks).all()
        gradient = np.mean([masked_gradient(worker, client, first, mask) for mask in masks], 0)
        expected -= LR * samples[client] / samples.sum() * gradient
    got = final_state((*BASE, *options, "rounds=1", f"strategy.output_lr={LR}"))[0]
    assert np.abs(got - first).max() > 1e-3
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_rounds_before_are_as_without_it() -> None:
    two, dense = final_state((*BASE, "rounds=2"))
    three, after = final_state((*BASE, "rounds=3", f"strategy.output_lr={LR}"))
    np.testing.assert_allclose(after, dense, atol=1e-6)  # biases are not part of the step
    longer = final_state((*BASE, "rounds=3", "strategy.output_lr=1e-30"))[0]
    np.testing.assert_array_equal(longer, two)
    assert not np.array_equal(three, two)


def test_a_run_that_has_had_it_has_no_more_rounds(tmp_path: Path) -> None:
    def values(rounds: int) -> dict[str, Any]:
        return {**VALUES, "rounds": rounds, "strategy": {"name": "submodel", "output_lr": LR}}

    folder = RunFolder(tmp_path)
    folder.create(values(2), model(), state())
    folder.add_round(row(1, 0.5), model(), state())
    assert resumable(tmp_path, values(4), dict)[0].round == 1  # interrupted before it: the last round is another one
    folder.add_round(row(2, 0.5), model(), state())
    assert resumable(tmp_path, values(2), dict)[0].round == 2
    with pytest.raises(RunError) as refused:
        resumable(tmp_path, values(4), dict)
    assert (refused.value.code, refused.value.key, refused.value.value) == ("output-step", "rounds", 4)

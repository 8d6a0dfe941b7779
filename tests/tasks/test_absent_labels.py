"""The logits of labels of which a client has no samples, in its loss and in training."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError
from fedmrn_app.federation.protocol import Order
from fedmrn_app.learning.batches import Batches
from fedmrn_app.tasks.task import Samples
from tests.helpers import IMAGES, final_state

HELD = [1, 4, 7]
OUTPUTS = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([1, 4, 7, 7, 4, 1])


def batches(absent: float | None) -> Batches:
    samples = Samples(np.zeros((6, 1, 8, 8), np.uint8), Y.numpy())
    return Batches(IMAGES, samples, batch_size=3, epochs=1, seed=0, absent=absent)


def test_logits_are_zero_or_left_out_or_kept() -> None:
    assert float(batches(None).loss(OUTPUTS, Y)) == float(functional.cross_entropy(OUTPUTS, Y))
    zero = OUTPUTS.clone()
    zero[:, [label for label in range(10) if label not in HELD]] = 0
    assert float(batches(0.0).loss(OUTPUTS, Y)) == float(functional.cross_entropy(zero, Y))
    among = functional.cross_entropy(OUTPUTS[:, HELD], torch.searchsorted(torch.tensor(HELD), Y))
    assert float(batches(-math.inf).loss(OUTPUTS, Y)) == pytest.approx(float(among), rel=1e-6)


RUN = ("clients=10", "clients_per_round=2", "rounds=1", "partition=label_shard", "partition.labels_per_client=3",
       "strategy=fedavg", "model=mlp", "model.hidden=[]", "local.epochs=1")  # fmt: skip


@pytest.mark.parametrize("absent", ["zero", "masked"])
def test_rows_of_absent_labels_are_not_trained(absent: str) -> None:
    worker = build_worker(load_config((*RUN, f"local.absent_labels={absent}")))
    model, protocol = worker.model()
    first = protocol.initial.reshape(10, 64).copy()
    worker.train(Order(0, 1, 5, protocol.initial, protocol.begin().dense))
    labels = np.unique(worker.samples_of(0).y[:])
    assert len(labels) == 3
    trained = model.weights.numpy().reshape(10, 64)
    moved = (trained != first).any(1)
    assert np.array_equal(np.flatnonzero(moved), labels)
    run = (*RUN, f"local.absent_labels={absent}")
    assert np.array_equal(final_state(run)[0], final_state(run)[0])
    assert not np.array_equal(final_state(run)[0], final_state(RUN)[0])


@pytest.mark.parametrize(
    "overrides", [("experiment=shakespeare", "local.absent_labels=zero"), ("local.absent_labels=gone",)]
)
def test_wrong_values_are_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(overrides)
    assert str(error.value).startswith(overrides[-1])

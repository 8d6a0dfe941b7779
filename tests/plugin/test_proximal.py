"""FedProx's term under masks: it pulls at what has been learned, and not at the noise that masks show."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedmrn_app.plugin.proximal import at_learned_weights, read_mu


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(60, 50, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mu", [0.05, 0.5])
def test_the_term_is_taken_at_the_learned_weights(mu: float) -> None:
    """Data's gradients point against what has been learned, and know nothing of the noise."""
    u = 0.01 * drawn(1)
    shown = torch.where(drawn(2) > 0, 0.04 * drawn(3), torch.zeros(())) + u
    data = -0.1 * u + 0.001 * drawn(4)
    found = at_learned_weights(data + mu * shown, shown, u, mu)
    wrong, left = (float((x - data - mu * u).norm()) for x in (data + mu * shown, found))
    assert left < 0.05 * wrong


def test_a_loss_without_the_term_keeps_its_gradient() -> None:
    u = 0.01 * drawn(1)
    shown = torch.where(drawn(2) > 0, 0.04 * drawn(3), torch.zeros(())) + u
    data = -0.1 * u + 0.001 * drawn(4)
    assert float((at_learned_weights(data, shown, u, 0.5) - data).norm()) < 0.1 * float(data.norm())
    assert at_learned_weights(data, u, u, 0.5) is data  # nothing is masked


def test_mu_is_read_from_the_message() -> None:
    assert read_mu(RecordDict({"config": ConfigRecord({"proximal-mu": 0.25, "lr": 1.0})})) == 0.25
    assert read_mu(RecordDict({"config": ConfigRecord({"lr": 1.0})})) == 0

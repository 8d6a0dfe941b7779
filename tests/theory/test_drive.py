"""What results/papers/measured.md says of DRIVE: the error of one client's estimate, and of the mean of many."""

import numpy as np
import pytest

from fedmrn_app.layout import Layout
from fedmrn_app.methods.drive import DriveScale, DriveSigns
from fedmrn_app.methods.shared_context import SharedContext


def mean_error(scale: DriveScale, elements: int, clients: int) -> float:
    """Return the squared error of the mean of estimates of one normal update, over the squared norm.

    Each client rotates the update by a seed of its own.
    """
    x = np.random.default_rng(0).standard_normal(elements, np.float32)
    codec, known = DriveSigns(scale), SharedContext(Layout(((elements,),)), x, x)
    total = np.zeros(elements)
    for seed in range(clients):
        total += codec.decode(codec.encode(x, known, seed, 0), known, seed)
    return float(np.square(total / clients - x).sum() / np.square(x).sum())


@pytest.mark.parametrize(
    ("scale", "stated"), [("least_mse", (0.3641, 0.1553, 0.1344)), ("unbiased", (0.5726, 0.0568, 0.0057))]
)
def test_errors_of_unbiased_estimates_cancel(scale: DriveScale, stated: tuple[float, ...]) -> None:
    assert [mean_error(scale, 65_536, clients) for clients in (1, 10, 100)] == pytest.approx(stated, abs=1e-4)

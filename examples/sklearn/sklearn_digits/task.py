"""The model and the data."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

TEST = 360  # rows


def new_model(epochs: int) -> LogisticRegression:
    """Return a logistic regression of zeros that goes on where it is."""
    model = LogisticRegression(max_iter=epochs, warm_start=True)
    model.classes_ = np.arange(10)
    set_arrays(model, [np.zeros((10, 64)), np.zeros(10)])
    return model


def arrays_of(model: LogisticRegression) -> list[np.ndarray]:
    """Return the model's arrays."""
    return [model.coef_, model.intercept_]


def set_arrays(model: LogisticRegression, arrays: list[np.ndarray]) -> None:
    """Set the model's arrays."""
    model.coef_, model.intercept_ = (np.array(array) for array in arrays)


def _rows() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return digits.data[order] / 16, digits.target[order]


def rows_of(client: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one client's rows."""
    x, y = _rows()
    return x[TEST + client :: clients], y[TEST + client :: clients]


def test_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return the test rows."""
    x, y = _rows()
    return x[:TEST], y[:TEST]

"""The model, its training, and the data."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

TEST = 360  # rows
Weights = Mapping[str, jax.Array | np.ndarray]


def new_model() -> Weights:
    """Return the weights of 64 inputs, 64 hidden units and 10 outputs."""
    one, two = jax.random.split(jax.random.key(0))
    return {
        "hidden.kernel": jax.random.normal(one, (64, 64)) / 8,
        "hidden.bias": jnp.zeros(64),
        "out.kernel": jax.random.normal(two, (64, 10)) / 8,
        "out.bias": jnp.zeros(10),
    }


def logits(weights: Weights, x: jax.Array) -> jax.Array:
    """Return logits (rows, 10)."""
    hidden = jax.nn.relu(x @ weights["hidden.kernel"] + weights["hidden.bias"])
    return hidden @ weights["out.kernel"] + weights["out.bias"]


@jax.jit
def step(weights: Weights, x: jax.Array, y: jax.Array, lr: float) -> Weights:
    """Return the weights after a step of gradient descent."""

    def loss(weights: Weights) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(logits(weights, x))[jnp.arange(len(y)), y])

    return jax.tree.map(lambda w, g: w - lr * g, weights, jax.grad(loss)(weights))


def train(weights: Weights, x: np.ndarray, y: np.ndarray, epochs: int, lr: float) -> Weights:
    """Train in batches of 32."""
    for _ in range(epochs):
        for start in range(0, len(x) - 31, 32):
            weights = step(weights, x[start : start + 32], y[start : start + 32], lr)
    return weights


def accuracy(weights: Weights, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of rows that are classified rightly."""
    return float((logits(weights, jnp.asarray(x)).argmax(1) == y).mean())


def _rows() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype(np.float32), digits.target[order]


def rows_of(client: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return one client's rows."""
    x, y = _rows()
    return x[TEST + client :: clients], y[TEST + client :: clients]


def test_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return the test rows."""
    x, y = _rows()
    return x[:TEST], y[:TEST]

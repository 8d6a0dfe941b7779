"""A round whose replies reach the server as their sum equals the round without, bit for bit."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.errors import PayloadError, RunError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.secure_round import from_fixed_point, to_fixed_point
from fedmrn_app.layout import Layout
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise

SMALL = (
    "rounds=1", "clients=12", "clients_per_round=10", "local.epochs=1", "local.batch_size=64", "client_weights=equal",
    "uplink.bits=null", "uplink.dense_bits=32", "uplink.max_norm=null", "uplink.coder=packed",
)  # fmt: skip
METHODS = (
    ("strategy=fedmrn", "strategy.shared_noise=true"),
    ("strategy=fedmrns", "strategy.shared_noise=true"),
    ("strategy=fedpm",),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))


def run(*words: str, secure: bool, left_out: frozenset[int] = frozenset()) -> list[GlobalState]:
    """The global states after each round; every report is checked."""
    _, config, _ = resolve_from_data(
        compose_values([*SMALL, f"privacy.secure_aggregation={str(secure).lower()}", *words])
    )
    states: list[GlobalState] = []

    def on_round(state: GlobalState, report: RoundReport) -> None:
        assert not left_out.intersection(report.used_clients)
        assert len(report.used) + len(report.failed) == config.clients_per_round
        states.append(state)

    run_rounds(build_worker(config), left_out=left_out, on_round=on_round)
    return states


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("words", METHODS, ids=lambda words: str(words[0]))
@pytest.mark.parametrize("left_out", [frozenset[int](), frozenset({2, 7})])
def test_the_vector_is_that_of_the_plain_round(words: tuple[str, ...], left_out: frozenset[int]) -> None:
    plain = run(*words, secure=False, left_out=left_out)[0]
    secure = run(*words, secure=True, left_out=left_out)[0]
    assert plain.vector.tobytes() == secure.vector.tobytes()
    np.testing.assert_allclose(secure.dense, plain.dense, rtol=1e-6, atol=2**-23)


def test_below_the_threshold_there_is_no_new_model() -> None:
    with pytest.raises(RunError, match="no secure sum"):
        run("strategy=fedpm", secure=True, left_out=frozenset(range(8)))


def test_clients_of_shared_noise_draw_their_own_masks() -> None:
    method = build_method("fedmrn", {"shared_noise": True}, RunOptions(noise=Noise("uniform", 0.01)))
    assert method.client_seed(0, 1, 3) == method.client_seed(0, 1, 4) != method.client_seed(0, 2, 3)
    layout, zero = Layout(((10, 100),)), np.zeros(1000, np.float32)
    context = SharedContext(layout, zero, zero)
    n = context.noise(Noise("uniform", 0.01), 5)
    half = n * np.float32(0.5)
    masks = [np.unpackbits(np.frombuffer(method.codec.encode(half, context, 5, own).data, np.uint8)) for own in (6, 7)]
    assert 0.4 < np.mean(masks[0] != masks[1]) < 0.6


@pytest.mark.parametrize("summands", [1, 10, 1000])
def test_fixed_point_sums(summands: int) -> None:
    values = (np.random.default_rng(summands).normal(0, 5, (summands, 50))).astype(np.float32)
    words = np.array([to_fixed_point(row, summands) for row in values])
    total = from_fixed_point(words.sum(0, np.uint64) & np.uint64((1 << 48) - 1))
    np.testing.assert_allclose(total, values.sum(0, np.float64).astype(np.float32), rtol=1e-6, atol=summands * 2**-25)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e6])
def test_values_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(PayloadError) as refused:
        to_fixed_point(np.array([0, -value], np.float32), 10)
    assert refused.value.code == "secure-range"

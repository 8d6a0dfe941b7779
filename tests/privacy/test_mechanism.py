"""Private sums: what is clipped, what noise they get, who is drawn, and what is refused before a run starts."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmrn_app.config.build import build_worker, resolve_from_data
from fedmrn_app.config.compose import compose_values
from fedmrn_app.config.privacy_checks import open_privacy
from fedmrn_app.errors import BudgetSpent, PayloadError, RunError
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.pipeline import RoundSums
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.report import RoundReport
from fedmrn_app.federation.server import OpenRound, close_round, open_round
from fedmrn_app.federation.upload import Update, write_upload
from fedmrn_app.layout import Layout
from fedmrn_app.learning.flat import state_sha256
from fedmrn_app.methods import build_method
from fedmrn_app.methods.method import RunOptions
from fedmrn_app.noise import Noise
from fedmrn_app.privacy.accounting import epsilon
from fedmrn_app.privacy.ledger import Ledger
from fedmrn_app.privacy.mechanism import Privacy, PrivacyConfig
from tests.helpers import METHODS, make_method

D, M = 300, 5
LAYOUT = Layout(((10, 20), (10, 10)))
STATE = GlobalState(np.linspace(-1, 1, D, dtype=np.float32), np.linspace(1, 2, M, dtype=np.float32))
SAMPLES = {client: 10 * (client + 1) for client in range(8)}
MLP = ("model=mlp", "model.hidden=[]", "uplink.bits=null")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMRN_CACHE", str(tmp_path / "cache"))


@cache
def protocol(name: str = "fedavg") -> RunProtocol:
    return RunProtocol(
        method=make_method(name),
        layout=LAYOUT,
        dense_sizes=(M,),
        initial=STATE.vector * 0,
        seed=3,
        dense_bits=32,
        parameters=D,
    )


def private(clip: float = 1.0, noise: float = 1.0, per_round: int = 8, **changes: Any) -> Privacy:
    config = PrivacyConfig(noise_multiplier=noise, **{"noise_seed": "run", "sampling": "fixed", **changes})
    return Privacy(config, seed=3, clip=clip, clients=8, clients_per_round=per_round, rounds=5)


def replies_of(opened: OpenRound, size: float) -> dict[int, bytes | PayloadError]:
    """Every client's update is a direction of its own, weights and dense part together of norm `size`."""
    found: dict[int, bytes | PayloadError] = {}
    for client in opened.clients:
        x = direction(client) * np.float32(size)
        known = opened.context(client)
        body = opened.protocol.method.codec.encode(x[:D], known, opened.seed(client), 0)
        update = Update(body, opened.dense + x[D:], loss=2.0)
        found[client] = write_upload(opened.protocol, opened.header(client, known), update, opened.dense)
    return found


def direction(client: int) -> Any:
    x = np.random.default_rng(client).standard_normal(D + M)
    return (x / np.linalg.norm(x)).astype(np.float32)


def moved(state: GlobalState) -> Any:
    return np.concatenate([state.vector - STATE.vector, state.dense - STATE.dense]).astype(np.float64)


@pytest.mark.parametrize(("size", "counts"), [(0.5, 0.5), (1.0, 1.0), (40.0, 1.0)])
def test_sum_is_that_of_clipped_contributions_with_equal_weights(size: float, counts: float) -> None:
    privacy = private(clip=1.0, noise=1e-9, per_round=6)
    opened = open_round(protocol(), STATE, 1, SAMPLES, 6, privacy=privacy)
    state, report = close_round(opened, replies_of(opened, size))
    expected = sum(direction(client) for client in opened.clients).astype(np.float64) * counts / 6
    np.testing.assert_allclose(moved(state), expected, atol=2e-6)
    assert len(opened.clients) == 6
    assert all(math.isnan(reply.loss) for reply in report.used)


@pytest.mark.parametrize(
    "name", ["fedavg", "fedmrn", "fedmrns", "eden", "quantized", "signsgd", "terngrad", "topk", "fedscalar"]
)
def test_no_client_moves_the_sum_by_more_than_the_clip(name: str) -> None:
    privacy = private(clip=0.01, noise=1e-9)
    opened = open_round(protocol(name), STATE, 1, SAMPLES, 8, privacy=privacy)
    replies = replies_of(opened, 5.0)
    alone = {}
    for left in (None, *opened.clients):
        some: dict[int, bytes | PayloadError] = {c: r for c, r in replies.items() if c != left}
        again = open_round(protocol(name), STATE, 1, SAMPLES, 8, privacy=private(clip=0.01, noise=1e-9))
        alone[left] = moved(close_round(again, some)[0]) * 8
    sizes = [np.linalg.norm(alone[None] - alone[left]) for left in opened.clients]
    assert max(sizes) <= 0.01 + 3e-6
    assert min(sizes) > 0.009


def test_masks_have_the_norm_of_their_noise() -> None:
    for name, binary in (("fedmrn", True), ("fedmrns", False)):
        method = make_method(name, noise=Noise("bernoulli", 0.25))
        bound = method.codec.limits(LAYOUT).max_norm
        assert bound is not None
        assert bound == pytest.approx(0.25 * math.sqrt(D))
        opened = open_round(replace(protocol(), method=method), STATE, 1, SAMPLES, 8)
        for x in (np.zeros(D, np.float32), np.random.default_rng(0).standard_normal(D).astype(np.float32)):
            known = opened.context(0)
            decoded = method.codec.decode(method.codec.encode(x, known, 5, 0), known, 5)
            norm = float(np.linalg.norm(decoded.astype(np.float64)))
            assert norm <= bound * (1 + 1e-6) if binary else norm == pytest.approx(bound)
    assert make_method("fedavg").codec.limits(LAYOUT).max_norm is None


@pytest.mark.slow
def test_noise_has_the_mean_of_the_sum_and_the_deviation_it_says() -> None:
    """2,000 draws of one round: each element's mean within 4 standard errors but for chance, and the variance."""
    draws = np.empty((2000, D + M))
    config = PrivacyConfig(noise_multiplier=1.5, sampling="fixed")
    exact = None
    for number in range(2000):
        privacy = Privacy(config, seed=3, clip=0.5, clients=8, clients_per_round=8, rounds=1)
        opened = open_round(protocol(), STATE, 1, SAMPLES, 8, privacy=privacy)
        if exact is None:
            replies = replies_of(opened, 2.0)
            exact = sum(direction(client) for client in SAMPLES).astype(np.float64) * 0.5 / 8
        draws[number] = moved(close_round(opened, replies, 1)[0])
    deviation = 1.5 * 0.5 / 8
    assert privacy.deviation == pytest.approx(deviation)
    errors = (draws.mean(0) - exact) / (deviation / math.sqrt(2000))
    assert np.abs(errors).max() < 4.8  # the largest of 305: beyond 4.8 with probability 0.0005
    assert (np.abs(errors) < 4).mean() > 0.99
    assert abs(errors.mean()) < 4 / math.sqrt(D + M)
    assert draws.std() == pytest.approx(deviation, rel=0.05)
    assert draws.std(0).mean() == pytest.approx(deviation, rel=0.01)


def test_noise_repeats_with_the_runs_seed_alone() -> None:
    def noise(number: int, **changes: Any) -> bytes:
        sums = RoundSums(np.zeros(D, np.float32), np.zeros(M, np.float32), np.zeros(M, np.float32))
        private(**changes).open(number, SAMPLES).post_processor().finish(sums)
        return sums.total.tobytes() + sums.dense.tobytes()

    assert noise(1) == noise(1)
    assert noise(1) != noise(2)
    assert noise(1, noise_seed="system") != noise(1, noise_seed="system")


def test_fixed_sampling_draws_so_many_and_poisson_each_by_itself() -> None:
    fixed, poisson = (private(per_round=2, sampling=kind, noise_seed="system") for kind in ("fixed", "poisson"))
    draws = {kind: [p.open(n, SAMPLES).clients for n in range(2000)] for kind, p in (("f", fixed), ("p", poisson))}
    assert {len(drawn) for drawn in draws["f"]} == {2}
    sizes = np.array([len(drawn) for drawn in draws["p"]])
    assert set(sizes) >= {0, 1, 2, 3, 4}
    assert abs(sizes.mean() - 2) < 4 * math.sqrt(8 * 0.25 * 0.75 / 2000)
    for found in draws.values():
        seen = np.bincount([client for drawn in found for client in drawn], minlength=8)
        assert np.abs(seen - 500).max() < 4 * math.sqrt(2000 * 0.25 * 0.75)
    assert fixed.open(1, [1, 2]).release.cost == ("fixed", 2, 2, 1.0)  # fewer clients are drawn more often
    assert poisson.open(1, [1, 2]).release.cost == ("poisson", 2, 8, 1.0)


def test_rounds_in_which_nobody_is_drawn_or_everybody_fails_release_noise() -> None:
    privacy = private(noise=2.0, sampling="poisson")
    empty = OpenRound(protocol(), 1, STATE, {}, private=replace(privacy.open(1, SAMPLES), clients=[]))
    failing = open_round(protocol(), STATE, 2, SAMPLES, 8, privacy=privacy)
    assert failing.clients
    for number, opened in enumerate((empty, failing), 1):
        state, report = close_round(opened, {})
        assert 0 < np.linalg.norm(moved(state)) < 2 * 2.0 / 8 * math.sqrt(D)
        assert report.epsilon == privacy.spent > 0
        assert len(report.failed) == len(opened.clients)
        assert len(privacy.ledger.releases) == number


def test_contribution_that_is_not_finite_is_left_out() -> None:
    """Each value is finite; the difference to what was sent is not."""
    state = GlobalState(STATE.vector, STATE.dense * np.float32(-1.6e38))
    opened = open_round(protocol(), state, 1, SAMPLES, 8, privacy=private())
    replies = replies_of(opened, 1.0)
    known = opened.context(0)
    body = opened.protocol.method.codec.encode(direction(0)[:D], known, 1, 0)
    replies[0] = write_upload(opened.protocol, opened.header(0, known), Update(body, -state.dense), state.dense)
    _, report = close_round(opened, replies)
    assert list(report.failures) == [0]


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_average_updates_add_the_mean(name: str) -> None:
    server = make_method(name).server
    vector, mean = np.full(4, 0.5, np.float32), np.array([0, 0.25, -0.25, 0.125], np.float32)
    assert np.array_equal(server.combine(vector.copy(), mean.copy(), 3), vector + mean) == server.averages_updates


def small(*words: str) -> tuple[str, ...]:
    return (*MLP, "rounds=4", "clients=20", "clients_per_round=10", "local.steps=1", "privacy.noise_seed=run", *words)


def run(words: tuple[str, ...], ledger: Ledger | None = None) -> tuple[str, list[RoundReport]]:
    _, config, _ = resolve_from_data(compose_values(words))
    worker = build_worker(config)
    agreed = worker.model()[1]
    reports: list[RoundReport] = []
    privacy = open_privacy(config, agreed, ledger)
    state = run_rounds(worker, privacy=privacy, on_round=lambda state, report: reports.append(report))
    return state_sha256(state.vector, state.dense), reports


@pytest.mark.parametrize("strategy", [pytest.param("fedmrn", marks=pytest.mark.slow), "fedavg"])
def test_same_seed_same_weights_and_epsilon_grows(strategy: str) -> None:
    words = small(f"strategy={strategy}", "uplink.bits=null", "privacy.noise_multiplier=2", "privacy.clip=0.5")
    (first, reports), (second, _) = run(words), run(words)
    assert first == second
    spent = [report.epsilon for report in reports]
    assert spent == sorted(set(spent))
    assert len(spent) == 4
    assert run((*words, "seed=1"))[0] != first
    assert run((*words, "privacy.noise_multiplier=3"))[0] != first


def test_run_ends_before_its_budget_is_exceeded() -> None:
    words = small("strategy=fedavg", "privacy.noise_multiplier=1", "privacy.clip=1", "privacy.epsilon=5")
    _, reports = run(words)
    assert 0 < len(reports) < 4
    assert reports[-1].epsilon <= 5
    _, config, _ = resolve_from_data(compose_values(words))
    release = Privacy(config.privacy, seed=0, clip=1, clients=20, clients_per_round=10, rounds=4).typical
    assert epsilon([release] * (len(reports) + 1), config.privacy.delta) > 5


@pytest.mark.slow
def test_noise_multiplier_is_found_for_the_rounds_and_kept_when_going_on(tmp_path: Path) -> None:
    words = small("strategy=fedavg", "privacy.epsilon=8", "privacy.clip=1")
    _, config, _ = resolve_from_data(compose_values(words))
    agreed = build_worker(config).model()[1]
    _, reports = run(words)
    assert 7.9 < reports[-1].epsilon <= 8
    ledger = Ledger.open(tmp_path, resume=False)
    whole = open_privacy(config, agreed, ledger)
    assert whole is not None
    for number in (1, 2):
        ledger.add(number, whole.typical)
    again = open_privacy(config, agreed, Ledger.open(tmp_path, resume=True))
    assert again is not None
    assert again.typical == whole.typical
    longer = open_privacy(replace(config, rounds=12), agreed, Ledger.open(tmp_path, resume=True))
    assert longer is not None
    assert longer.typical.noise_multiplier > whole.typical.noise_multiplier
    together = [*longer.ledger.releases, *[longer.typical] * 10]
    assert 7.9 < epsilon(together, 1e-5) <= 8
    with pytest.raises(BudgetSpent):
        open_privacy(replace(config, privacy=replace(config.privacy, epsilon=1.0)), agreed, longer.ledger)
    with pytest.raises(RunError):
        open_privacy(replace(config, privacy=PrivacyConfig()), agreed, longer.ledger)


def test_private_options_build_no_other_method() -> None:
    assert build_method("fedmrn", {}, RunOptions(Noise())).randomized_response is None
    assert not build_method("fedmrn", {}, RunOptions(Noise())).whole_model

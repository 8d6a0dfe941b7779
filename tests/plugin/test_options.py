"""The options of `Compressed` and `compressed_grid`: what is refused, and what is named because it has no effect."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Krum,
    QFedAvg,
)
from torch import nn

from fedmrn_app.errors import ConfigError, RunError
from fedmrn_app.plugin import Compressed, MaskedSGD, compressed_grid, learn_masks
from fedmrn_app.plugin.fidelity import bits_of_round, uses_single
from tests.plugin_app import inner, learned, run

RATE = {"method": "fedmrn", "round": 2, "rate": [0.06, None, 0.2]}


def lines(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """What is logged as without effect when a strategy is made."""
    logging.getLogger("flwr").propagate = True
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(inner(), **options)
    return [text for record in caplog.records if "has no effect" in (text := record.getMessage())]


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"alpha": "auto"}, "Compressed: alpha=auto has no effect because eden masks no noise"),
        ({"method": "eden", "alpha": 0.1}, "Compressed: alpha=0.1 has no effect because eden masks no noise"),
        (
            {"method": "topk", "noise": "gaussian"},
            "Compressed: noise=gaussian has no effect because topk masks no noise",
        ),
        ({"step": 0.5}, "Compressed: step=0.5 has no effect because the arrays are sent as they are"),
        (
            {"options": {"bits": 0.2, "error": 0.1}},
            "Compressed: options={'bits': 0.2, 'error': 0.1}: bits has no effect",
        ),
        (
            {"method": "fedmrn", "state": RATE},
            "Compressed: the noise scale in state has no effect because bits is not given",
        ),
    ],
)
def test_options_without_effect_are_named(
    options: dict[str, Any], start: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = lines(caplog, **options)
    assert line.startswith(start)
    assert "\n" not in line


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "fedmrn", "alpha": 0.1, "noise": "gaussian"},
        {"method": "fedmrns", "alpha": "auto"},
        {"method": "fedmrn", "alpha": 0.1, "options": {"masking": "post_sm"}},
        {"method": "fedmrn", "bits": 1.0, "state": RATE},
        {"downlink": "grid", "step": 0.5},
        {"options": {"error": 0.1}},
        {"alpha": "auto", "method": "fedmrn", "seed": np.int64(3)},
    ],
)
def test_options_with_effect_are_not(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, **options) == []


@pytest.mark.parametrize(
    ("options", "key", "code"),
    [
        ({"metod": "eden"}, "metod", "unknown-key"),
        ({"method": "FedMRN"}, "method", "choice"),
        ({"options": {"bit": 3}}, "options.bit", "unknown-key"),
        ({"options": 3}, "options", "type"),
        ({"method": "fedmrn", "alpha": "Auto"}, "alpha", "choice"),
        ({"method": "fedmrn", "noise": "normal"}, "noise", "choice"),
        ({"method": "fedmrn", "bits": -1.0}, "bits", "range"),
        ({"method": "fedmrn", "bits": float("nan")}, "bits", "range"),
        ({"downlink": "grid", "step": -1.0}, "step", "range"),
        ({"seed": -1}, "seed", "range"),
        ({"seed": 1 << 56}, "seed", "range"),
        ({"max_failed_rounds": -1}, "max_failed_rounds", "range"),
        ({"plain_replies": "no"}, "plain_replies", "type"),
        ({"dense_bits": 6.0}, "dense_bits", "type"),
        ({"method": "fedmrn", "alpha": "auto", "noise": "bernoulli"}, "alpha", "conflict"),
        ({"method": "fedmrn", "alpha": "auto", "options": {"masking": "dm"}}, "alpha", "conflict"),
        ({"method": "fedmrn", "alpha": "auto", "options": {"masking": "post_sm"}}, "alpha", "conflict"),
    ],
)
def test_options_are_refused_before_a_run(options: dict[str, Any], key: str, code: str) -> None:
    for make in (lambda: Compressed(inner(), **options), lambda: compressed_grid(None, **options).__enter__()):  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as refused:
            make()
        assert (refused.value.key, refused.value.code) == (key, code)
        assert "\n" not in str(refused.value)


def test_method_with_another_spelling_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean fedmrn"):
        Compressed(inner(), "FedMRN")


@pytest.mark.parametrize("options", [{"noise": "gaussian"}, {"options": {"masking": "pm"}}])
def test_clients_set_no_scales_of_other_noise_or_masks(options: dict[str, Any]) -> None:
    """Their masks would stand for two to four times the update."""

    def train(net: nn.Module, message: Message, x: Any, y: Any) -> None:
        learn_masks(torch.optim.SGD(net.parameters(), 0.1), net, message, steps=1, alpha="auto")

    with pytest.raises(RunError, match="alpha=auto: clients set the scale of uniform noise"):
        run(Compressed(inner(), "fedmrn", **options), train, rounds=1)


@pytest.mark.parametrize("lr", [-0.1, float("nan")])
def test_masked_sgd_refuses_other_rates(lr: float) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        MaskedSGD(net, message, lr, steps=1)

    with pytest.raises(RunError) as refused:
        learned(loop)
    assert (refused.value.code, refused.value.key) == ("range", "lr")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"method": "fedmrn", "alpha": "auto"}, "fedmrn, uniform noise, alpha=auto, dense_bits=6, seed=0"),
        ({"method": "fedmrn", "bits": 1.0}, "fedmrn, uniform noise, alpha=0.01, bits=1, dense_bits=6, seed=0"),
        ({"options": {"bits": 0.5}, "seed": 3}, "quantized, bits=0.5, dense_bits=6, seed=3"),
    ],
)
def test_log_shows_the_settings_that_count(options: Any, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, "flwr"):
        Compressed(inner(), **options).summary()
    assert any(record.getMessage().endswith(f"Uplink: {shown}") for record in caplog.records)


@pytest.mark.parametrize(("method", "named"), [(None, False), ("fedavg", False), ("eden", True), ("fedmrn", True)])
def test_methods_that_change_norms_are_named_under_qfedavg(
    method: str | None, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        Compressed(QFedAvg(client_learning_rate=0.1), method)
    assert any("QFedAvg's steps shorter" in record.getMessage() for record in caplog.records) == named


@pytest.mark.parametrize(
    ("strategy", "single"),
    [
        (FedAvg(), False),
        (QFedAvg(client_learning_rate=0.1), True),
        (Krum(), True),
        (Bulyan(), True),
        (DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, 3), True),
        (DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.1, 3), True),
    ],
)
def test_strategies_that_use_single_updates_are_sent_three_bits(strategy: Any, single: bool) -> None:
    assert uses_single(strategy) == single
    bits = [bits_of_round(number, 10, single=single) for number in (1, 2, 3, 50)]
    assert bits == ([3, 3, 3, 3] if single else [2, 2, 1, 1])
    assert bits_of_round(1, 10, single=single, only=True) == 4

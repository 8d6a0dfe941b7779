"""What does not go with privacy is refused in one line before a run starts."""

import re

import pytest

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError
from tests.helpers import METHODS

MLP = ("model=mlp", "model.hidden=[]", "uplink.bits=null")

REFUSED = [
    (["privacy.clip=1"], "privacy.clip=1: clipping without noise protects nobody; say privacy.noise_multiplier=1 or"),
    (["privacy.flip=0.1", "privacy.local_epsilon=1"], "privacy.flip=0.1: follows from privacy.local_epsilon=1; say o"),
    (["privacy.flip=0.5"], "privacy.flip=0.5: must be at least 1e-09 and below 0.5"),
    (["privacy.local_epsilon=0.001"], "privacy.local_epsilon=0.001: must be at least 0.005 and at most 20"),
    (["privacy.epsilon=8", "uplink.bits=0.5"], "uplink.bits=0.5: steers the masks by the sizes of clients' replies"),
    (["privacy.flip=0.1", "uplink.bits=0.5"], "uplink.bits=0.5: steers the masks by the sizes of clients' replies"),
    (["privacy.epsilon=8", "evaluate_train=true"], "evaluate_train=true: publishes the model's loss on clients' rows"),
    (["privacy.flip=0.1", "strategy=eden"], "privacy.flip=0.1: strategy=eden sends no masks of which bits could be f"),
    (["privacy.epsilon=8", "privacy.clip=1", "strategy=fedpm"], "strategy=fedpm: averages whole masks or models"),
    (["privacy.epsilon=8", "privacy.clip=1", "strategy=fedsparsify"], "strategy=fedsparsify: averages whole masks or"),
    (
        ["privacy.epsilon=8", "privacy.clip=1", "strategy=submodel", "strategy.aggregate=coverage"],
        "strategy.aggregate=coverage: divides by how many clients hold a weight",
    ),
    (
        ["privacy.epsilon=8", "privacy.clip=1", "strategy=topk", "strategy.error_feedback=true"],
        "strategy.error_feedback=true: clients carry from round to round what clipping took away",
    ),
    (["privacy.epsilon=8", "strategy=fedavg"], "privacy.clip=null: updates of strategy=fedavg have any norm; say the"),
    (["privacy.epsilon=8", "privacy.delta=0.1"], "privacy.delta=0.1: must be below 1/clients=0.1"),
    (["privacy.epsilon=8", "model=digits"], "model.name=digits: has running statistics, which cannot be averaged with"),
    (["privacy.flip=0.1", "model=digits"], "model.name=digits: has running statistics, which cannot be averaged with"),
    (["privacy.epsilon=0.5", "privacy.noise_multiplier=1"], "privacy.epsilon=0.5: not one round fits: with one epsilo"),
    (["privacy.sampling=all"], "privacy.sampling=all: must be one of poisson, fixed"),
    (["privacy.noise_seed=7"], "privacy.noise_seed=7: must be one of system, run"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config((*(("uplink.bits=null",) if "model=digits" in words else MLP), *words))
    assert "\n" not in str(caught.value)


def test_every_method_fits_or_is_refused() -> None:
    refused = []
    for name in METHODS:
        words = (*MLP, f"strategy={name}", "uplink.bits=null", "privacy.noise_multiplier=1", "privacy.clip=1")
        try:
            assert load_config(words).privacy.noised
        except ConfigError as error:
            refused.append(str(error).partition(":")[0])
    assert refused == ["strategy=fedpm", "strategy=fedsparsify"]

"""What secure sums need follows from the one setting that asks for them."""

import pytest

from fedmrn_app.config.compose import load_config
from fedmrn_app.config.schema import Config


def follows(config: Config) -> tuple[object, ...]:
    return config.uplink.coder, config.uplink.bits, config.uplink.max_norm, config.client_weights


@pytest.mark.parametrize("strategy", ["fedmrn", "fedmrns", "fedpm"])
def test_one_word_is_enough(strategy: str) -> None:
    secure = load_config((f"strategy={strategy}", "privacy.secure_aggregation=true"))
    assert follows(secure) == ("packed", None, None, "equal")
    plain = load_config((f"strategy={strategy}",))
    assert follows(plain) == ("auto", 0.5 if strategy == "fedmrn" else None, 100, "samples")


def test_given_values_stay() -> None:
    given = ("uplink.coder=packed", "uplink.bits=null", "uplink.max_norm=5", "client_weights=equal")
    assert follows(load_config(given)) == ("packed", None, 5, "equal")

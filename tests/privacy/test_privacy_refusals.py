"""Methods that cannot be private are refused; all refusals are in tests/config/refusals.csv."""

import pytest

from fedmrn_app.config.compose import load_config
from fedmrn_app.errors import ConfigError
from tests.helpers import METHODS

MLP = ("model=mlp", "model.hidden=[]", "uplink.bits=null")


@pytest.mark.slow
def test_every_method_fits_or_is_refused() -> None:
    refused = []
    for name in METHODS:
        words = (*MLP, f"strategy={name}", "uplink.bits=null", "privacy.noise_multiplier=1", "privacy.clip=1")
        try:
            assert load_config(words).privacy.noised
        except ConfigError as error:
            refused.append(str(error).partition(":")[0])
    assert refused == ["strategy=fedpm", "strategy=fedsparsify"]

"""What can be told of the worst client is not above the stated epsilon, and without noise the audit says so."""

from dataclasses import replace

import numpy as np
import pytest

from tests.privacy.audit import SETTINGS, Setting, audit, lower_bound

RUNS = 3000  # of either kind
IDS = [f"{s.sampling}-{s.asked}-of-{s.clients}-{s.rounds}-rounds" for s in SETTINGS]


def test_bound_of_known_distributions() -> None:
    """Two normal distributions a standard deviation apart have epsilon 4.38 at 1e-5; equal ones have none."""
    random = np.random.default_rng(0)
    one, other, same = random.normal(1, 1, 20000), random.normal(0, 1, 20000), random.normal(0, 1, 20000)
    assert 2 < lower_bound(one, other) < 4.38
    assert lower_bound(other, same) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [pytest.param(one, marks=pytest.mark.long if one.rounds > 1 else ()) for one in SETTINGS],
    ids=IDS,
)
def test_audit_stays_below_what_is_stated(setting: Setting) -> None:
    least, without = audit(setting, RUNS), audit(replace(setting, factor=1e-3), RUNS)
    print(f"\n{setting}: stated {setting.stated:.3f}, at least {least:.3f}, without noise at least {without:.3f}")
    assert least <= setting.stated < without
    assert least > 0.1 or setting is SETTINGS[-1]  # of which this many runs may show too little

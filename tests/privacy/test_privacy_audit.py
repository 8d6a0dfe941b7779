"""What can be told of the worst client is not above the stated epsilon, and without noise the audit says so."""

from dataclasses import replace

import numpy as np
import pytest

from scripts.theory.privacy_audit import SETTINGS, Setting, audit, lower_bound

AUDITED = SETTINGS[:3]  # of the last one 2,000 runs show too little
IDS = [f"{s.sampling}-{s.asked}-of-{s.clients}-{s.rounds}-rounds" for s in AUDITED]


def test_bound_of_known_distributions() -> None:
    """Two normal distributions a standard deviation apart have epsilon 4.38 at 1e-5; equal ones have none."""
    random = np.random.default_rng(0)
    one, other, same = random.normal(1, 1, 20000), random.normal(0, 1, 20000), random.normal(0, 1, 20000)
    assert 2 < lower_bound(one, other) < 4.38
    assert lower_bound(other, same) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("setting", AUDITED, ids=IDS)
def test_audit_stays_below_what_is_stated(setting: Setting) -> None:
    least = audit(setting, 2000)
    assert 0.1 < least <= setting.stated
    assert audit(replace(setting, factor=1e-3), 2000) > setting.stated

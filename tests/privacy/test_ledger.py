"""The ledger of a run is read back, is never overwritten, and must hold all rounds."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedmrn_app.errors import RunError
from fedmrn_app.privacy.accounting import Release
from fedmrn_app.privacy.ledger import FILE, Ledger


def test_the_ledger_is_read_back_and_never_lost(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, resume=False)
    release = Release("fixed", 8, 8, 1.0, 1.0)
    for number, noise in ((1, 1.0), (2, 1.0), (2, 2.0)):  # a round that was done again is paid again
        ledger.add(number, replace(release, noise_multiplier=noise))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"round": 3, "samp')  # cut off
    again = Ledger.open(tmp_path, resume=True)
    assert again.releases == ledger.releases
    again.add(3, release)
    assert len(Ledger.open(tmp_path, resume=True).releases) == 4
    again.must_hold(3)
    with pytest.raises(RunError, match="round 4"):
        again.must_hold(4)
    with pytest.raises(RunError) as refused:
        Ledger.open(tmp_path, resume=False)
    assert (refused.value.code, refused.value.key) == ("ledger", "resume")
    lines = (tmp_path / FILE).read_text().splitlines()
    for bad in ("{}", "[1]", lines[0].replace("0.5", "-1").replace('"clip": 1.0', '"clip": "x"'), "nonsense"):
        (tmp_path / FILE).write_text("\n".join([lines[0], bad, lines[1]]) + "\n")
        with pytest.raises(RunError, match="line 2") as caught:
            Ledger.open(tmp_path, resume=True)
        assert "\n" not in str(caught.value)

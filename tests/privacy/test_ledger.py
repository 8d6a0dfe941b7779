"""The ledger of a run is read back, is never overwritten, must hold all rounds, and fixes where noise comes from."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    again.must_hold(3, release)
    with pytest.raises(RunError, match="round 4"):
        again.must_hold(4, release)
    with pytest.raises(RunError) as refused:
        Ledger.open(tmp_path, resume=False)
    assert (refused.value.code, refused.value.key) == ("ledger", "resume")
    lines = (tmp_path / FILE).read_text().splitlines()
    for bad in ("{}", "[1]", lines[0].replace("0.5", "-1").replace('"clip": 1.0', '"clip": "x"'), "nonsense"):
        (tmp_path / FILE).write_text("\n".join([lines[0], bad, lines[1]]) + "\n")
        with pytest.raises(RunError, match="line 2") as caught:
            Ledger.open(tmp_path, resume=True)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"noise_seed": "run"}, "privacy.noise_seed was run and is now system; set privacy.noise_seed=run"),
        ({"flip": 0.1}, "privacy.flip was 0.1 and is now null; set privacy.flip=0.1"),
    ],
)
def test_source_of_noise_and_flips_stay_what_the_ledger_says(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    release = Release("poisson", 5, 10, 1.0, 1.0)
    Ledger.open(tmp_path, resume=False).add(1, replace(release, **changes))
    written = json.loads((tmp_path / FILE).read_text())
    assert (written["noise_seed"], written["flip"]) == (changes.get("noise_seed", "system"), changes.get("flip"))
    again = Ledger.open(tmp_path, resume=True)
    again.must_hold(1, replace(release, clip=2.0, **changes))
    with pytest.raises(RunError) as refused:
        again.must_hold(1, release)
    assert str(refused.value) == f"the run has begun with another setting: {line}"
    assert (refused.value.code, refused.value.key) == ("changed", line.partition(" ")[0])


@pytest.mark.parametrize("name", ["noise_seed", "flip"])
def test_ledger_of_an_older_version_is_refused_by_what_it_lacks(name: str, tmp_path: Path) -> None:
    Ledger.open(tmp_path, resume=False).add(1, Release("poisson", 5, 10, 1.0, 1.0))
    values = json.loads((tmp_path / FILE).read_text())
    del values[name]
    (tmp_path / FILE).write_text(json.dumps(values) + "\n")
    with pytest.raises(RunError, match="an older version wrote it") as refused:
        Ledger.open(tmp_path, resume=True)
    assert (refused.value.code, refused.value.key) == ("ledger", f"privacy.{name}")
    assert "\n" not in str(refused.value)

"""What clients count over real devices, where their numbers of samples are what they state themselves."""

import dataclasses
import json
from pathlib import Path

import pytest

from fedmrn_app.config.compose import load_config
from fedmrn_app.flower.device_records import DeviceRecords
from fedmrn_app.flower.prepare import weigh_devices
from tests.reference import AGREEMENT


def records(path: Path, *samples: int | None) -> DeviceRecords:
    devices = {f"device-{n}": {"number": n, "node_id": n, "samples": count} for n, count in enumerate(samples)}
    (path / "federation.json").write_text(json.dumps({"devices": devices}))
    return DeviceRecords(path / "federation.json")


@pytest.mark.parametrize("confirmed", [(), (50, None), (50, 70)])
@pytest.mark.parametrize("max_share", [None, 0.2])
def test_stated_numbers_count_only_within_a_limit(
    confirmed: tuple[int | None, ...], max_share: float | None, tmp_path: Path
) -> None:
    lines: list[str] = []
    config = load_config(("clients=4", "clients_per_round=4", f"max_share={max_share or 'null'}"))
    protocol = dataclasses.replace(AGREEMENT, max_share=max_share)
    devices = records(tmp_path, *confirmed) if confirmed else None
    weighed = weigh_devices(protocol, config, devices, lines.append)
    all_confirmed = confirmed == (50, 70)
    assert weighed.confirmed == ({0: 50, 1: 70, 2: 50, 3: 70} if all_confirmed else None)
    assert weighed.equal_weights == (not all_confirmed and max_share is None)
    assert weighed.max_share == max_share
    assert ["confirmed" in line for line in lines] == ([True] if all_confirmed else [False] if not max_share else [])


def test_equal_weights_stay_as_they_are(tmp_path: Path) -> None:
    config = load_config(("client_weights=equal",))
    equal = dataclasses.replace(AGREEMENT, equal_weights=True)
    lines: list[str] = []
    assert weigh_devices(equal, config, records(tmp_path, 50), lines.append) == equal
    assert lines == []

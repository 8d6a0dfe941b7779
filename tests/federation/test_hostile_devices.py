"""Hostile devices among honest ones: none counts more than its share, and robust means withstand all of them."""

import pytest

from tests.federation import hostile
from tests.federation.hostile import compare, three_devices


@pytest.mark.slow
def test_device_with_four_billion_rows_moves_no_more_than_one_of_three_equals() -> None:
    found = three_devices(3, ["strategy=fedavg"])
    equal = found["one of three equals, wrong labels"]
    assert found["the same, states 4,294,967,295 rows"] == equal
    assert found["the same, max_share=0.2"] == equal
    assert found["the same, a server that believes it"].accuracy < 0.1 < equal.accuracy
    assert equal.accuracy < found["nobody hostile"].accuracy


@pytest.mark.slow
@pytest.mark.long
def test_robust_means_and_a_small_norm_limit_withstand_what_destroys_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = ("scale", "noise", "damage")
    monkeypatch.setattr(hostile, "DEFENCES", ("aggregation=mean", "uplink.max_norm=3", "aggregation=median"))
    monkeypatch.setattr(hostile, "WAYS", ways)
    found = compare(10, 1, 4, ["strategy=fedavg"])
    honest = found["aggregation=mean", "nobody"].accuracy
    assert found["aggregation=mean", "scale"].accuracy < 0.5 < honest
    for way in ways:
        assert found["aggregation=median", way].accuracy > honest - 0.1
        assert found["aggregation=mean", way].refused == (4 if way == "damage" else 0)
    for way in ("scale", "noise"):
        assert found["uplink.max_norm=3", way].accuracy > honest - 0.1
        assert found["uplink.max_norm=3", way].refused == 4

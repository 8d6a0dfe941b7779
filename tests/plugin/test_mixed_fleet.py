"""The server's half by a real Flower run: a client without the mod, one that fails, and a run that fails."""

from pathlib import Path

import pytest

from tests.flower_app import run_flower_app


@pytest.mark.flower
@pytest.mark.slow
def test_mixed_fleet(tmp_path: Path) -> None:
    found = run_flower_app(Path(__file__).parent / "mixed_app", {}, tmp_path, nodes=3)
    size, first = found["size"], found["first"]
    for number, seen in enumerate(found["rounds"], 1):
        assert seen["global"] == pytest.approx(first + 0.1 * number, abs=0.03)
        # The grid rounds to the nearest of its wide steps.
        assert seen["clients"] == pytest.approx([seen["global"]] * 3, abs=0.06)
        assert seen["uplinks"][0] < size / 8 < size < seen["uplinks"][-1]
        assert len(seen["uplinks"]) == (2 if number == 2 else 3)
        assert ["client 1 has no data" in error for error in seen["errors"]] == ([True] if number == 2 else [])
    assert list(found["loop"].values()) == pytest.approx([first + 0.1] * len(found["loop"]), abs=0.03)
    assert min(map(int, found["loop"])) < size / 8 < size < max(map(int, found["loop"]))
    log = (tmp_path / "flower.log").read_text()
    assert "aggregate_train: Received 2 results and 1 failures" in log
    assert "all clients failed in round 1; first node" in log
    assert "[ROUND 2/5]" not in log

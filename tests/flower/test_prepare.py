"""What a run says before its first round about the size of its replies."""

from dataclasses import replace

import pytest
from torch import nn

from fedmrn_app.config.build import build_worker
from fedmrn_app.config.compose import load_config
from fedmrn_app.flower.prepare import budget_lines, early_lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=mlp", "model.hidden=[128]"), []),
        (("model=mlp", "model.hidden=[16]", "strategy=fedavg"), []),
        (
            ("model=mlp", "model.hidden=[64]"),
            ["uplink.bits=0.5: replies of this model take at least about 0.69 bits", "4,736 weights to mask"],
        ),
        (
            ("model=mlp", "model.hidden=[16]", "uplink.bits=4"),
            ["strategy=fedmrn: this model has 1,184 weights to mask", "uploads about 5,0"],
        ),
        (
            ("model=mlp", "model.hidden=[128]", "uplink.bits=1"),
            ["uplink.bits=1: replies take about 0.7", "longer masks have less noise and learn no more"],
        ),
        (("model=mlp", "model.hidden=[4]"), ["at least about 6.8", "this model has 296 weights to mask"]),
    ],
)
def test_a_line_says_what_a_budget_costs(words: tuple[str, ...], said: list[str]) -> None:
    lines = budget_lines(build_worker(load_config(words)).model()[1])
    assert all(any(part in line for line in lines) for part in said), lines
    assert bool(lines) == bool(said)


@pytest.mark.parametrize("schedule", ["front", "both_ends", "constant", "auto"])
@pytest.mark.parametrize("room", [1.02, 3.0])
def test_a_line_says_that_a_budget_has_no_room_for_fine_rounds(schedule: str, room: float) -> None:
    words = ("model=mlp", "model.hidden=[1024]", "uplink.bits=null", f"uplink.schedule={schedule}", "rounds=20")
    protocol = build_worker(load_config((*words, "uplink.budget=1"))).model()[1]
    assert protocol.budget is not None
    protocol = replace(protocol, budget=replace(protocol.budget, bits=room * protocol.budget.least))
    lines = [line for line in budget_lines(protocol) if line.startswith("uplink.schedule")]
    if room > 2 or schedule not in ("front", "both_ends"):
        assert lines == []
    else:
        assert len(lines) == 1
        assert lines[0].startswith(f"uplink.schedule={schedule}: all rounds have equal shares")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("partition=label_shard", "partition.labels_per_client=2", "rounds=10"), True),
        (("partition=label_shard", "partition.labels_per_client=2", "rounds=20"), True),
        (("partition=label_shard", "partition.labels_per_client=2", "rounds=30"), False),
        (("partition=label_shard", "partition.labels_per_client=5", "rounds=5"), False),
        (("partition=label_shard", "partition.labels_per_client=2", "rounds=5", "strategy=quantized"), False),
        (("rounds=5",), False),
    ],
)
def test_a_line_says_that_masks_of_few_labels_need_more_rounds(words: tuple[str, ...], said: bool) -> None:
    config = load_config(words)
    worker = build_worker(config)
    lines = early_lines(config, worker.model()[1], worker.model()[0].module)
    assert [line.partition(":")[0] for line in lines] == [f"rounds={config.rounds}"] * said


def attending(channels: int, size: tuple[int, int], classes: int) -> nn.Module:
    """An encoder layer over the rows of an image."""
    layer = nn.TransformerEncoderLayer(channels * size[1], 2, 16, batch_first=True)
    return nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(channels * size[0] * size[1], classes))


def test_a_line_says_that_masks_of_attention_need_more_rounds() -> None:
    config = load_config(("model=own", f"model._target_={__name__}.attending", "rounds=20"))
    flat, protocol = build_worker(config).model()
    (line,) = early_lines(config, protocol, flat.module)
    assert "models with attention" in line
    assert not early_lines(replace(config, rounds=21), protocol, flat.module)

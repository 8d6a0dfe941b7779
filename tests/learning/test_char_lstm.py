"""The character LSTM: which tensors it has, in both published forms, and that they compute what the formulas say."""

import pytest
import torch
from torch import Tensor, nn

from fedmrn_app.errors import ConfigError
from fedmrn_app.learning.models.char_lstm import CharLSTM, char_lstm
from fedmrn_app.validation import check_call


def build(**options: object) -> CharLSTM:
    torch.manual_seed(0)
    module = char_lstm(**check_call(char_lstm, {"vocabulary": 80, "classes": 80, **options}, "model"))
    assert isinstance(module, CharLSTM)
    return module


def published(**options: object) -> CharLSTM:
    """The form of FedMRN's published code."""
    return build(layers=1, bias=False, dropout=0.5, initial_std=0.01, **options)


def trained(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def test_the_published_form_has_three_masked_matrices_and_an_embedding() -> None:
    module = published()
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "embedding.weight": (80, 8),
        "lstm.weight_ih_l0": (1024, 8),
        "lstm.weight_hh_l0": (1024, 256),
        "linear.weight": (80, 256),
    }
    for parameter in module.parameters():
        assert float(parameter.detach().std()) == pytest.approx(0.01, rel=0.1)


def test_leafs_form_has_one_bias_for_each_gate_and_open_forget_gates() -> None:
    module = build()
    matrices = 80 * 8 + 1024 * 8 + 1024 * 256 + 2 * 1024 * 256 + 80 * 256
    assert trained(module) == matrices + 2 * 1024 + 80
    for layer in ("l0", "l1"):
        held = module.lstm.get_parameter(f"bias_hh_{layer}")
        assert not held.requires_grad
        assert held.view(4, 256).sum(1).tolist() == [0, 256, 0, 0]  # input, forget, cell, output
        assert module.lstm.get_parameter(f"bias_ih_{layer}").count_nonzero() == 0


def plain_lstm(module: CharLSTM, characters: Tensor) -> Tensor:
    """The logits of one layer without biases, gate by gate, by the textbook."""
    inner, recurrent = (module.lstm.get_parameter(f"weight_{kind}_l0") for kind in ("ih", "hh"))
    state = memory = torch.zeros(len(characters), 256)
    for step in range(characters.shape[1]):
        gates = module.embedding.weight[characters[:, step]] @ inner.T + state @ recurrent.T
        i, f, g, o = gates.chunk(4, 1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        state = o.sigmoid() * memory.tanh()
    return state @ module.linear.weight.T


def test_logits_are_those_of_the_last_state() -> None:
    module = build(layers=1, bias=False, initial_std=0.3).eval()
    characters = torch.randint(0, 80, (3, 12))
    with torch.no_grad():
        assert module(characters).shape == (3, 80)
        torch.testing.assert_close(module(characters), plain_lstm(module, characters), rtol=1e-4, atol=1e-4)


def test_dropout_is_of_training_alone() -> None:
    module = published()
    characters = torch.randint(0, 80, (2, 10))
    assert not torch.equal(module(characters), module(characters))
    module.eval()
    assert torch.equal(module(characters), module(characters))


def test_the_embedding_is_masked_where_asked() -> None:
    assert not hasattr(build().embedding, "masked_weights")
    assert getattr(build(masked_embedding=True).embedding, "masked_weights", False) is True


@pytest.mark.parametrize("option", ["layers=0", "layers=9", "units=0", "dropout=1.0", "initial_std=0.0"])
def test_values_out_of_range_are_refused(option: str) -> None:
    name, value = option.split("=")
    with pytest.raises(ConfigError, match=f"^model.{option}: must be "):
        build(**{name: float(value) if "." in value else int(value)})


def test_it_learns_to_repeat_the_last_character() -> None:
    module = build(layers=1, units=32).train()
    characters = torch.randint(0, 80, (256, 5))
    optimizer = torch.optim.SGD(module.parameters(), lr=3)
    losses = []
    for _ in range(120):
        loss = nn.functional.cross_entropy(module(characters), characters[:, -1])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(4.38, abs=0.1)  # log 80
    assert losses[-1] < 1

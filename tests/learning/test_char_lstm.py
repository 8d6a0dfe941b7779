"""The character LSTM has the tensors of both published forms, and computes what the formulas say."""

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
    """The logits of one layer without biases, computed gate by gate."""
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


def test_dropout_and_the_masked_embedding_are_options() -> None:
    module, characters = published(), torch.randint(0, 80, (2, 10))
    assert not torch.equal(module(characters), module(characters))
    module.eval()
    assert torch.equal(module(characters), module(characters))
    assert not hasattr(module.embedding, "masked_weights")
    assert getattr(build(masked_embedding=True).embedding, "masked_weights", False) is True


@pytest.mark.parametrize("option", [{"layers": 0}, {"layers": 9}, {"units": 0}, {"dropout": 1.0}, {"initial_std": 0.0}])
def test_values_out_of_range_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**option)
    assert str(error.value).startswith(f"model.{next(iter(option))}=")

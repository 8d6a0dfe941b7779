"""What a client returns and what the server reads: equal, or a line that names the tensor and the cause."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.nn import functional

from fedmrn_app.errors import RunError
from fedmrn_app.plugin import MaskedSGD, learn_masks
from tests.plugin_app import Loop, data_of, learned, new_net

STEPS = 6
EDEN: dict[str, Any] = {"on_difference": "eden"}


def backward(net: nn.Module, step: int) -> None:
    x, y = data_of(11)
    rows = torch.arange(16 * step, 16 * (step + 1)) % len(x)
    nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]


def take(net: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    backward(net, step)
    optimizer.step()


def sgd(net: nn.Module, message: Message, **options: Any) -> torch.optim.Optimizer:
    plain = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    return learn_masks(plain, net, message, steps=STEPS, **options)


def masked_sgd(net: nn.Module, message: Message, **options: Any) -> torch.optim.Optimizer:
    return MaskedSGD(net, message, 0.1, steps=STEPS, **options)


makers = pytest.mark.parametrize("make", [masked_sgd, sgd])
Change = Callable[[Any], None]


def changed(make: Any, change: Change, at: int, **options: Any) -> Loop:
    """A training before whose step `at` the model is changed; at STEPS after all steps."""

    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message, **options)
        for step in range(STEPS + 1):
            if step == at:
                change(net)
            if step < STEPS:
                net.float()  # nothing but what `change` did matters to the forward pass
                take(net, optimizer, step)

    return loop


def refused(loop: Loop, make: Callable[[], nn.Module] = new_net, **options: Any) -> RunError:
    with pytest.raises(RunError) as error:
        learned(loop, make, **options)
    assert "\n" not in str(error.value)
    return error.value


def weight_of(net: Any) -> nn.Parameter:
    weight: nn.Parameter = net.hidden.weight
    return weight


def as_vector(net: nn.Module) -> None:
    """Every parameter's memory is replaced."""
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(vector, net.parameters())


def through_double(net: nn.Module) -> None:
    net.double().float()


@pytest.mark.fast_cases(4)
@makers
@pytest.mark.parametrize("change", [as_vector, through_double])
@pytest.mark.parametrize("at", [0, 3, STEPS])
def test_other_memory_with_the_same_values_changes_nothing(make: Any, change: Change, at: int) -> None:
    without = partial(new_net, batch_norm=False)
    arrived, ended = learned(changed(make, change, at), without)
    expected, _ = learned(changed(make, lambda net: None, at), without)
    assert not torch.equal(ended["hidden.weight"], without().state_dict()["hidden.weight"])
    for name, tensor in arrived.items():
        assert torch.equal(tensor, ended[name]), name
        assert torch.equal(tensor, expected[name]), name


def replaced(net: Any) -> None:
    net.hidden.weight = nn.Parameter(net.hidden.weight.detach().clone())


def assigned(net: nn.Module) -> None:
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)


@makers
@pytest.mark.parametrize("change", [replaced, assigned])
@pytest.mark.parametrize("at", [0, 3])
def test_other_parameters_are_refused(make: Any, change: Change, at: int) -> None:
    error = refused(changed(make, change, at))
    assert error.code == "moved"
    assert error.key == ("hidden.weight" if change is replaced else "conv.weight")


@makers
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_refused(make: Any, dtype: torch.dtype) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message)
        take(net, optimizer, 0)
        net.to(dtype)
        optimizer.step()

    error = refused(loop)
    assert (error.code, error.key) == ("moved", "conv.weight")
    assert str(dtype) in str(error)


@makers
def test_half_precision_models_are_refused_at_once(make: Any) -> None:
    def loop(net: Any, message: Message) -> None:
        make(net.half(), message)

    error = refused(loop)
    assert (error.code, error.key) == ("dtype", "conv.weight")
    assert "torch.float16" in str(error)


def best(net: nn.Module) -> None:
    """Something else than what the last step left is returned."""
    with torch.no_grad():
        weight_of(net).mul_(0.99)


def rounded(net: nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(parameter.bfloat16())


def shortened(net: nn.Module) -> None:
    """As a mod does that clips."""
    first = new_net().state_dict()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(first[name] + 0.5 * (parameter - first[name]))


def as_sent(net: nn.Module) -> None:
    net.load_state_dict(new_net().state_dict())


CAUSES = [(best, "best checkpoint"), (rounded, "16 bits"), (shortened, "shortened to 0.5"), (as_sent, "another copy")]


@makers
@pytest.mark.parametrize(("change", "cause"), CAUSES)
def test_other_weights_are_refused_with_the_cause(make: Any, change: Change, cause: str) -> None:
    error = refused(changed(make, change, STEPS))
    assert error.code == "difference"
    assert error.key in dict(new_net().named_parameters())
    assert error.key in str(error)
    assert change is not best or error.key == "hidden.weight"
    assert cause in str(error)


@makers
@pytest.mark.parametrize("change", [change for change, _ in CAUSES if change in (best, shortened)])
def test_other_weights_may_be_sent_by_eden(make: Any, change: Change) -> None:
    """EDEN with a bit per weight leaves 0.571 of the squared norm of an update, up to chance in 600 weights.

    Its error is the same in all weights, and rows that did not move arrive without.
    """
    arrived, ended = learned(changed(make, change, STEPS, **EDEN))
    first = new_net().state_dict()
    names = [name for name, tensor in ended.items() if tensor.dim() >= 2 and not torch.equal(tensor, first[name])]
    error, update = (
        sum(float(((one[name] - two[name]) ** 2).sum()) for name in names)
        for one, two in ((arrived, ended), (ended, first))
    )
    moved = [(ended[name] != first[name]).flatten(1).any(1).repeat_interleave(first[name][0].numel()) for name in names]
    assert 0.4 < error / update / float(torch.cat(moved).float().mean()) < 0.75
    assert torch.equal(arrived["frozen.weight"], ended["frozen.weight"])


@makers
def test_equal_weights_are_sent_as_masks_with_every_choice(make: Any) -> None:
    one, two = (learned(changed(make, lambda net: None, 0, **options))[0] for options in ({}, EDEN))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    error = refused(changed(make, lambda net: None, 0, on_difference="ignore"))
    assert (error.code, error.value) == ("choice", "ignore")


def every_step(make: Any, change: Change, **options: Any) -> Loop:
    """A training that changes the model after each step."""

    def loop(net: nn.Module, message: Message) -> None:
        optimizer = make(net, message, **options)
        for step in range(STEPS):
            take(net, optimizer, step)
            change(net)

    return loop


def plain_update(change: Change) -> Tensor:
    """The update of one weight that plain SGD learns with the change after each step."""
    net, first = new_net(), weight_of(new_net())
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step in range(STEPS):
        take(net, optimizer, step)
        change(net)
    return (weight_of(net) - first).detach()


@torch.no_grad()
def not_negative(net: Any) -> None:
    """Through `data`, which leaves no trace in the version of a tensor."""
    net.hidden.weight.data.clamp_(min=0)


@torch.no_grad()
def of_norm_two(net: Any) -> None:
    net.hidden.weight *= 2 / net.hidden.weight.norm()


@torch.no_grad()
def larger(net: Any) -> None:
    net.hidden.weight += 0.01


@makers
@pytest.mark.parametrize("change", [not_negative, of_norm_two, larger])
def test_changes_after_each_step_are_part_of_the_update(make: Any, change: Change) -> None:
    """The model ends near plain training, and masks of the whole change arrive, along it and about as long."""
    first, expected = weight_of(new_net()).detach(), plain_update(change)
    arrived, ended = learned(every_step(make, change), alpha="auto")
    update, masked = (state["hidden.weight"] - first for state in (ended, arrived))
    assert float((update - expected).norm()) < 0.35 * float(expected.norm())
    assert 0.4 < float((masked * expected).sum() / expected.square().sum()) < 1.6
    if change is not_negative:
        assert float(ended["hidden.weight"].min()) == 0


@makers
def test_a_change_between_two_steps_is_added(make: Any) -> None:
    """At any step, and to what the model then shows, which is masked in part."""
    first = weight_of(new_net()).detach()
    for at in (1, 3):
        means = []
        for change in (larger, lambda net: None):
            _, ended = learned(changed(make, change, at), alpha="auto")
            means.append(float((ended["hidden.weight"] - first).mean()))
        assert 0.003 < means[0] - means[1] < 0.03


class Wide(nn.Module):
    """A kernel and a matrix of more values than are compared at once, and of both orders in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden = nn.Conv2d(2, 3, 3), nn.Linear(300, 300)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.conv(x[:, :18].view(-1, 2, 3, 3)).sum() + self.hidden(x).sum())


@pytest.mark.fast_cases(4)
@makers
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", ["conv", "hidden"])
def test_one_value_that_is_written_through_data_is_seen_at_any_step(
    make: Any, layout: torch.memory_format, place: int, name: str
) -> None:
    """Also if it is the last one, or in kernels whose order is not that of the masks."""

    def loop(net: Any, message: Message) -> None:
        net.to(memory_format=layout)
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(1e-3 * net(torch.ones(2, 300)))
            if step == 4:
                weight = getattr(net, name).weight
                weight.data[(place,) * weight.dim()] += 5
            optimizer.step()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = Wide()
    _, ended = learned(loop, lambda: copy.deepcopy(first), alpha="auto")
    change = ended[f"{name}.weight"] - first.state_dict()[f"{name}.weight"]
    assert 4 < float(change[(place,) * change.dim()]) < 6
    change[(place,) * change.dim()] = 0
    assert float(change.abs().max()) < 1


@makers
@pytest.mark.parametrize("change", [not_negative, larger])
def test_a_change_after_the_last_step_is_refused(make: Any, change: Change) -> None:
    error = refused(changed(make, change, STEPS))
    assert (error.code, error.key) == ("difference", "hidden.weight")


@makers
def test_followed_changes_need_calls_of_the_model(make: Any) -> None:
    """Only a call tells when a forward pass begins."""

    def loop(net: Any, message: Message) -> None:
        optimizer = make(net, message)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(functional.linear(torch.ones(1, 24), net.hidden.weight).square().sum())
            optimizer.step()
            not_negative(net)

    error = refused(loop)
    assert error.code == "changed"
    assert "is not called" in str(error)


class Wrapper:
    """As those of accelerate, Opacus and fastai: an optimizer inside, which it steps."""

    def __init__(self, name: str, inside: torch.optim.Optimizer) -> None:
        setattr(self, name, inside)
        self._inside = inside

    def zero_grad(self) -> None:
        self._inside.zero_grad()

    def step(self) -> None:
        self._inside.step()


@pytest.mark.parametrize("name", ["optimizer", "original_optimizer", "opt"])
def test_wrapped_optimizers_learn_masks(name: str) -> None:
    def make(net: nn.Module, message: Message) -> Any:
        plain = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        return learn_masks(Wrapper(name, plain), net, message, steps=STEPS)  # type: ignore[type-var]

    arrived, ended = learned(changed(make, lambda net: None, 0))
    expected, _ = learned(changed(sgd, lambda net: None, 0))
    assert all(torch.equal(arrived[key], ended[key]) for key in ("hidden.weight", "conv.weight"))
    assert torch.equal(arrived["hidden.weight"], expected["hidden.weight"])


def test_other_objects_learn_no_masks() -> None:
    def loop(net: nn.Module, message: Message) -> None:
        learn_masks(object(), net, message, steps=STEPS)  # type: ignore[type-var]

    assert refused(loop).code == "optimizer"


@makers
def test_second_optimizer_for_masks_is_refused(make: Any) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        for _ in range(2):  # as in an app that makes one in each epoch
            optimizer = make(net, message)
            for step in range(STEPS):
                take(net, optimizer, step)

    assert refused(loop).code == "second-optimizer"


def head_only(net: Any, message: Message) -> torch.optim.Optimizer:
    return learn_masks(torch.optim.SGD(net.head.parameters(), lr=0.1), net, message, steps=STEPS)


def two_plain(net: Any, message: Message) -> torch.optim.Optimizer:
    """The head has masks; another optimizer trains the rest."""
    ours = head_only(net, message)
    rest = torch.optim.SGD([net.conv.weight, net.hidden.weight], lr=0.1)
    ours.register_step_post_hook(lambda *_: rest.step())
    return ours


def added_later(net: Any, message: Message) -> torch.optim.Optimizer:
    ours = head_only(net, message)
    ours.add_param_group({"params": [net.conv.weight, net.hidden.weight], "lr": 0.1})
    return ours


@pytest.mark.parametrize("make", [head_only, two_plain, added_later])
def test_masks_of_a_part_of_the_model(make: Any) -> None:
    """What others train is sent densely, here in 32 bits."""
    arrived, ended = learned(changed(make, lambda net: None, 0))
    first = new_net().state_dict()
    for name, tensor in arrived.items():
        torch.testing.assert_close(tensor.reshape(ended[name].shape), ended[name], rtol=0, atol=1e-6)
    moved = {name for name, p in new_net().named_parameters() if not torch.equal(arrived[name], first[name])}
    rest = set() if make is head_only else {"conv.weight", "hidden.weight"}
    assert moved - {"head.bias"} == {"head.weight", *rest}


def test_masked_sgd_takes_no_parameters_later() -> None:
    def loop(net: Any, message: Message) -> None:
        masked_sgd(net, message).add_param_group({"params": [nn.Parameter(torch.ones(2, 2))]})

    assert refused(loop).code == "added-parameters"


@makers
def test_layers_that_stay_on_the_client_keep_their_values(make: Any) -> None:
    own = torch.full((3, 24), 0.01)

    def loop(net: Any, message: Message) -> None:
        with torch.no_grad():
            net.head.weight.copy_(own)
        changed(make, lambda net: None, 0)(net, message)

    arrived, ended = learned(loop)
    assert float((ended["head.weight"] - own).abs().max()) < 0.2
    torch.testing.assert_close(arrived["head.weight"], ended["head.weight"], rtol=0, atol=1e-6)
    assert torch.equal(arrived["hidden.weight"], ended["hidden.weight"])


@makers
@pytest.mark.parametrize("load", [True, False])
def test_arrays_may_be_loaded_after_the_optimizer_is_made(make: Any, load: bool) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        sent = copy.deepcopy(net.state_dict())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1)
        optimizer = make(net, message)
        if load:
            net.load_state_dict(sent)
        for step in range(STEPS):
            take(net, optimizer, step)

    if load:
        arrived, ended = learned(loop)
        assert torch.equal(arrived["hidden.weight"], ended["hidden.weight"])
    else:
        error = refused(loop)
        assert (error.code, error.key) == ("changed", "conv.weight")


@makers
def test_training_a_copy_is_refused(make: Any) -> None:
    def loop(net: nn.Module, message: Message) -> None:
        optimizer, other = make(net, message), copy.deepcopy(net)
        for step in range(STEPS):
            backward(other, step)
            optimizer.step()

    assert refused(loop).code == "no-gradient"


@makers
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_named(make: Any, bad: float) -> None:
    def loop(net: Any, message: Message) -> None:
        optimizer = make(net, message)
        for step in range(STEPS):
            optimizer.zero_grad()
            backward(net, step)
            if step == STEPS - 1:
                net.hidden.weight.grad[1, 1] = bad
            optimizer.step()

    error = refused(loop)
    assert (error.code, error.key) == ("not-finite", "hidden.weight")


@pytest.mark.parametrize("method", ["eden", "fedmrn"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_returned_values_that_are_not_finite_are_named(method: str, bad: float) -> None:
    def loop(net: Any, message: Message) -> None:
        if method == "fedmrn":
            changed(masked_sgd, lambda net: None, 0)(net, message)
        net.norm.running_mean[2] = bad

    error = refused(loop, method=method)
    assert (error.code, error.key, error.value) == ("not-finite", "norm.running_mean", 1)


@makers
def test_infinities_that_stay_are_allowed(make: Any) -> None:
    def masked_net() -> nn.Module:
        net = new_net()
        net.register_buffer("attention", torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]))
        net.register_buffer("limits", torch.tensor([-torch.inf, 1.0]))
        return net

    arrived, ended = learned(changed(make, lambda net: None, 0), masked_net)
    assert all(torch.equal(arrived[name], ended[name]) for name in ("attention", "limits", "hidden.weight"))


class Vectors(nn.Module):
    """Without a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize("method", ["eden", "drive", "signsgd", "topk", "terngrad", "quantized", "fedavg"])
def test_models_without_matrices(method: str) -> None:
    def loop(net: Any, message: Message) -> None:
        with torch.no_grad():
            net.scale.add_(torch.arange(5))

    arrived, ended = learned(loop, Vectors, method=method)
    torch.testing.assert_close(arrived["scale"], ended["scale"])


def test_models_without_matrices_learn_no_masks() -> None:
    def loop(net: Any, message: Message) -> None:
        masked_sgd(net, message)

    error = refused(loop, Vectors)
    assert error.code == "names"
    assert "no floating-point arrays of two or more dimensions" in str(error)

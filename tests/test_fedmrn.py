"""The masks follow the paper: Eqs. 6, 7 and 10, the straight-through gradient, and what the server decodes."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedmrn_app.errors import ConfigError
from fedmrn_app.kernels.masked_step import MaskKind, clip_update, mask_probability
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel, to_tensor
from fedmrn_app.learning.models import ImageShape, build_model
from fedmrn_app.methods import Common, LocalTask, Noise, build_method
from fedmrn_app.methods.fedmrn import MASKINGS, FedMRN, FedMRNS
from fedmrn_app.noise import Float32Array
from fedmrn_app.wire.masks import unpack_mask
from tests.test_flat import images

SEED = 77
LR = 0.1
SHAPE = ImageShape(1, 8, 8, 10)


def mask_noise(n: torch.Tensor, kept: torch.Tensor, signed: bool) -> torch.Tensor:
    return torch.where(kept, n, -n if signed else torch.zeros_like(n))


def task(epochs: int = 2, vector: Float32Array | None = None) -> LocalTask:
    batches = Batches(images(40, SHAPE), batch_size=8, epochs=epochs, seed=1)
    return LocalTask(batches, LR, "float32", SEED, common(vector), private_seed=2)


def common(vector: Float32Array | None = None) -> Common:
    """The model is new, or holds `vector`; some of its weights have moved before."""
    vector = new_model().state()[0] if vector is None else vector
    return Common(new_model().shapes, vector, vector * np.linspace(0.5, 1, vector.size, dtype=np.float32))


def new_model() -> FlatModel:
    return FlatModel(build_model("digits", SHAPE, 3))


@pytest.mark.parametrize("method", [FedMRN(Noise()), FedMRNS(Noise())])
def test_stochastic_masks_match_their_probabilities(method: FedMRN) -> None:
    draws = 10_000
    n = to_tensor(Noise()(5, 64))
    ratio = torch.linspace(-1.6, 1.6, 64)  # u / n, well beyond both intervals
    u = ratio * n
    # written out from Eqs. 6 and 7
    p = ((u + n) / (2 * n)).clamp(0, 1) if method.signed else (u / n).clamp(0, 1)
    mean = torch.stack([method.draw_mask(u, n, key) for key in range(draws)]).double().mean(0)
    standard_error = (p * (1 - p) / draws).sqrt().double()
    assert (torch.abs(mean - p) <= 4 * standard_error + 1e-9).all()
    torch.testing.assert_close(mask_probability(u, n, method.kind), p)


@pytest.mark.parametrize("signed", [False, True])
def test_masking_is_unbiased_within_reach(signed: bool) -> None:
    n = to_tensor(Noise("gaussian")(5, 10_000))
    u = n * torch.linspace(-1 if signed else 0, 1, 10_000)
    p = mask_probability(u, n, MaskKind(signed))
    expectation = p * mask_noise(n, torch.ones_like(n, dtype=torch.bool), signed)
    expectation += (1 - p) * mask_noise(n, torch.zeros_like(n, dtype=torch.bool), signed)
    torch.testing.assert_close(expectation, u, rtol=1e-4, atol=1e-9)


def test_clipping() -> None:
    n = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    u = torch.tensor([3.0, 1.0, -3.0, 3.0, -1.0, -3.0])
    assert clip_update(u, n, False).tolist() == [2, 1, 0, 0, -1, -2]
    assert clip_update(u, n, True).tolist() == [2, 1, -2, 2, -1, -2]


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize("masking", MASKINGS)
def test_local_training(name: str, masking: str) -> None:
    """Follow the weights of every forward pass, and recompute u from the gradients at just those weights."""
    method = build_method(name, {"masking": masking}, Noise())
    assert isinstance(method, FedMRN)
    local = task()
    model, n = new_model(), to_tensor(method.noise(SEED, new_model().weights.numel()))
    w = model.weights.clone()
    seen: list[torch.Tensor] = []
    model.module.register_forward_pre_hook(lambda *_: seen.append(model.weights.clone()))
    update = method.train(model, local)
    steps = len(local.batches)
    assert len(seen) == steps

    twin = new_model()
    u = torch.zeros_like(w)
    twin.module.train()
    expressible = [w + mask_noise(n, torch.full_like(n, kept, dtype=torch.bool), method.signed) for kept in (0, 1)]
    for step, (weights, (x, y)) in enumerate(zip(seen, local.batches, strict=True), 1):
        masked = (weights == expressible[0]) | (weights == expressible[1])
        if masking == "post_sm":
            torch.testing.assert_close(weights, w + u, rtol=1e-5, atol=1e-7)
        elif masking in ("sm", "dm") or step == steps:
            assert masked.all()  # at t = S nothing but n * m is left
        else:
            assert (masked | torch.isclose(weights, w + clip_update(u, n, method.signed), rtol=1e-4, atol=1e-7)).all()
        twin.weights.copy_(weights)
        twin.zero_grads()
        functional.cross_entropy(twin.module(x), y).backward()  # type: ignore[no-untyped-call]
        u -= LR * twin.weight_grads  # straight through: the gradient at the masked weights reaches u unchanged
        twin.dense[: twin.dense_grads.numel()] -= LR * twin.dense_grads

    kept = torch.from_numpy(unpack_mask(update.body, n.numel(), partial(method.evidence, n.numpy(), local.common)))
    sure = mask_probability(u, n, method.kind)
    if masking in ("pm", "dm"):
        agree = kept == ((u * n) > 0)
        assert float(agree.float().mean()) > 0.999  # u is recomputed, so an element at zero may fall either way
    else:
        assert float((kept[sure >= 1]).float().mean()) > 0.999
        assert float((kept[sure <= 0]).float().mean()) < 0.001
        assert float(kept.float().mean()) == pytest.approx(float(sure.mean()), abs=4 * n.numel() ** -0.5)
    torch.testing.assert_close(model.dense, twin.dense, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize("distribution", ["uniform", "gaussian", "bernoulli"])
def test_server_decodes_exactly_the_masked_noise(name: str, distribution: str) -> None:
    noise = Noise(distribution, 0.01)  # type: ignore[arg-type]
    method = build_method(name, {}, noise, coder="packed")
    body = method.train(new_model(), task(1)).body
    d = new_model().weights.numel()
    kept = np.unpackbits(np.frombuffer(body.data, np.uint8), count=d, bitorder="little").astype(bool)
    n = noise(SEED, d)
    expected = np.where(kept, n, -n if name == "fedmrns" else 0)
    assert np.array_equal(method.decode(body, SEED, common()), expected)
    assert 0 < kept.mean() < 1
    auto = build_method(name, {}, noise)
    other = auto.train(new_model(), task(1)).body
    assert len(other) <= len(body)
    assert np.array_equal(auto.decode(other, SEED, common()), expected)


def test_unknown_masking_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy\.masking=always: must be one of psm"):
        build_method("fedmrn", {"masking": "always"}, Noise())

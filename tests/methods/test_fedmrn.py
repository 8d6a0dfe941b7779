"""FedMRN follows its paper: Equations 6, 7 and 10, the straight-through gradient, and the server's masked noise."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedmrn_app.kernels.counter_rng import known_key
from fedmrn_app.kernels.masking import MaskKind, clip_update, mask_probability
from fedmrn_app.layout import Layout
from fedmrn_app.learning.flat import to_tensor
from fedmrn_app.methods.fedmrn import MASKINGS, NoiseMask, draw_mask
from fedmrn_app.methods.mask_decoding import ReplyNoise
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import DISTRIBUTIONS, Distribution, Noise
from fedmrn_app.wire.masks import unpack_mask
from tests.helpers import GAUSSIAN, LR, SEED, local_round, make_method, moved, new_known, new_model


def mask_noise(n: torch.Tensor, kept: torch.Tensor, signed: bool) -> torch.Tensor:
    return torch.where(kept, n, -n if signed else torch.zeros_like(n))


@pytest.mark.parametrize("signed", [False, True])
def test_stochastic_masks_have_the_probabilities_of_the_paper(signed: bool) -> None:
    """Equations 6 and 7, written out; the masked noise is unbiased where u / n is in the interval."""
    kind, draws = MaskKind(signed), 10_000
    n = to_tensor(Noise()(5, 64))
    ratio = torch.linspace(-1.6, 1.6, 64)  # u / n, which leaves both intervals
    u = ratio * n
    p = ((u + n) / (2 * n)).clamp(0, 1) if signed else (u / n).clamp(0, 1)
    torch.testing.assert_close(mask_probability(u, n, kind), p)
    mean = torch.stack([draw_mask(u, n, kind, key) for key in range(draws)]).double().mean(0)
    standard_error = (p * (1 - p) / draws).sqrt().double()
    assert (torch.abs(mean - p) <= 4 * standard_error + 1e-9).all()
    expectation = p * mask_noise(n, torch.tensor(True), signed) + (1 - p) * mask_noise(n, torch.tensor(False), signed)
    within = (ratio.abs() <= 1) & (signed | (ratio >= 0))
    torch.testing.assert_close(expectation[within], u[within], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
def test_masks_are_drawn_by_blocks_as_from_the_whole_noise(name: str, distribution: Distribution) -> None:
    """Whether the noise is held, as after training, or made block by block; packed bodies are the mask itself."""
    layout = Layout(((300, 250),))
    noise, random = Noise(distribution, 0.02), np.random.default_rng(3)
    n = noise(SEED, layout.count)
    u = (random.normal(size=n.size) * n).astype(np.float32)
    u[:5] = 0.0, np.inf, -np.inf, np.nan, n[4]
    codec = make_method(name, "packed", noise=noise).codec
    assert isinstance(codec, NoiseMask)
    plain = draw_mask(to_tensor(u), to_tensor(n), codec.kind, known_key(SEED)).numpy()
    for held in (False, True):
        known = SharedContext(layout, n, n)
        if held:
            known.noise(codec.noise, SEED)
        assert codec.encode(u, known, SEED, 7).data == np.packbits(plain, bitorder="little").tobytes()


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
def test_sent_masks_match_their_probabilities(name: str) -> None:
    """Over the server's seeds, from which the last draw follows; the private seed has no effect."""
    draws, ratio = 2000, np.linspace(-1.6, 1.6, 64, dtype=np.float32)
    codec, known = make_method(name, "packed").codec, SharedContext(Layout(((8, 8),)), ratio, ratio)
    assert isinstance(codec, NoiseMask)
    kept = np.zeros(64)
    for seed in range(draws):
        n = codec.noise(seed, 64)
        body = codec.encode(ratio * n, known, seed, private_seed=seed % 3)
        assert body == codec.encode(ratio * n, known, seed, private_seed=7)
        kept += codec.decode(body, known, seed) == n
    p = ((ratio + 1) / 2 if name == "fedmrns" else ratio).clip(0, 1)
    standard_error = np.sqrt(p * (1 - p) / draws)
    assert (np.abs(kept / draws - p) <= 4 * standard_error + 1e-9).all()


@pytest.mark.parametrize(("name", "bits"), [("fedmrn", 0.33), ("fedmrns", 0.4)])
def test_updates_smaller_than_the_noise_take_few_bits(name: str, bits: float) -> None:
    """Most thresholds are far from the update, though both values of a signed mask are equally likely."""
    codec, known = make_method(name, noise=Noise("uniform", 0.04)).codec, moved(((400, 400),))
    x = GAUSSIAN[: known.count] * np.float32(0.002)
    assert 8 * len(codec.encode(x, known, 5, 0)) / x.size < bits


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize("masking", MASKINGS)
def test_local_training(name: str, masking: str) -> None:
    """Follow the weights of every forward pass, and recompute u from the gradients at just those weights."""
    method = make_method(name, masking=masking)
    assert isinstance(method.codec, NoiseMask)
    kind = method.codec.kind
    assert kind == MaskKind(name == "fedmrns", deterministic=masking in ("pm", "dm"))
    local = local_round()
    model, n = new_model(), to_tensor(method.codec.noise(SEED, new_model().weights.numel()))
    w = model.weights.clone()
    seen: list[torch.Tensor] = []
    model.module.register_forward_pre_hook(lambda *_: seen.append(model.weights.clone()))
    trained = method.training.train(model, local)
    body = method.codec.encode(trained.x, local.context, SEED, local.private_seed)
    steps = len(local.batches)
    assert len(seen) == steps

    twin = new_model()
    u = torch.zeros_like(w)
    twin.module.train()
    expressible = [w + mask_noise(n, torch.full_like(n, kept, dtype=torch.bool), kind.signed) for kept in (0, 1)]
    for step, (weights, (x, y)) in enumerate(zip(seen, local.batches, strict=True), 1):
        masked = (weights == expressible[0]) | (weights == expressible[1])
        if masking == "post_sm":
            torch.testing.assert_close(weights, w + u, rtol=1e-5, atol=1e-7)
        elif masking in ("sm", "dm") or step == steps:
            assert masked.all()  # at t = S every element is masked
        else:
            assert (masked | torch.isclose(weights, w + clip_update(u, n, kind.signed), rtol=1e-4, atol=1e-7)).all()
        twin.weights.copy_(weights)
        twin.zero_grads()
        functional.cross_entropy(twin.module(x), y).backward()  # type: ignore[no-untyped-call]
        u -= LR * twin.weight_grads  # straight through: the gradient at the masked weights reaches u unchanged
        twin.dense[: twin.dense_grads.numel()] -= LR * twin.dense_grads

    noise = ReplyNoise(method.codec.noise, SEED, n.numpy())
    kept = torch.from_numpy(unpack_mask(body, n.numel(), partial(method.codec.side_info, noise, local.context)))
    sure = mask_probability(u, n, kind)
    if masking in ("pm", "dm"):
        agree = kept == ((u * n) > 0)
        assert float(agree.float().mean()) > 0.999  # u is recomputed, so an element near zero may have either sign
    else:
        assert float((kept[sure >= 1]).float().mean()) > 0.999
        assert float((kept[sure <= 0]).float().mean()) < 0.001
        assert float(kept.float().mean()) == pytest.approx(float(sure.mean()), abs=4 * n.numel() ** -0.5)
    torch.testing.assert_close(model.dense, twin.dense, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_server_decodes_exactly_the_masked_noise(name: str, distribution: Distribution) -> None:
    noise, local = Noise(distribution, 0.01), local_round(1)
    method = make_method(name, "packed", noise)
    x = method.training.train(new_model(), local).x
    body = method.codec.encode(x, local.context, SEED, 2)
    kept = np.unpackbits(np.frombuffer(body.data, np.uint8), count=x.size, bitorder="little").astype(bool)
    n = noise(SEED, x.size)
    expected = np.where(kept, n, -n if name == "fedmrns" else 0)
    assert np.array_equal(method.codec.decode(body, new_known(), SEED), expected)
    assert 0 < kept.mean() < 1
    auto = make_method(name, "auto", noise)
    other = auto.codec.encode(auto.training.train(new_model(), local_round(1)).x, local.context, SEED, 2)
    assert len(other) <= len(body)
    for server in (method.codec, auto.codec):
        assert np.array_equal(server.decode(other, new_known(), SEED), expected)
        total = np.zeros_like(n)
        server.read(other, new_known(), SEED).add_to(total, np.float32(3))
        assert np.array_equal(total, np.float32(3) * expected)

"""One made-up update of each method, and the payload that it is written as."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.federation.upload import Update, header_of, write_upload
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.methods.method import LocalTraining, Method, TrainContext
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise, generate_noise
from tests.helpers import CASES, image_task, images, make_method
from tests.plain.upload import Upload, read_upload

LAYOUT = Layout(((8, 128, 4, 4), (10, 30)))
DENSE_SIZES = [10, 30]
D, M, SEED = LAYOUT.count, sum(DENSE_SIZES), 123456789
SAMPLES = 600
IN_LANES = "@lanes"
IN_FACTORS = "@factors"
FACTORED_SCALES = {  # of the updates; a mask has factors only where the update is about as large as the noise
    f"fedmrn{IN_FACTORS}": 10,
    f"fedmrns{IN_FACTORS}": 10,
    f"quantized{IN_FACTORS}": 1,
    f"quantized-tensor_steps-1{IN_FACTORS}": 1,
}
NAMES = [*CASES, f"eden-bits-3{IN_LANES}", *FACTORED_SCALES]


def values(seed: int, count: int, alpha: float = 1.0) -> Float32Array:
    return generate_noise(seed, count, "gaussian", alpha)


def build(name: str) -> Method:
    return make_method(name.split("@")[0], noise=Noise("gaussian", 0.01))


def agreement_of(method: Method) -> RunProtocol:
    return RunProtocol(
        method=method, layout=LAYOUT, dense_sizes=DENSE_SIZES, initial=values(2, D), seed=0, dense_bits=6
    )


def known_of(method: Method) -> SharedContext:
    """Return weights that have moved, or tenths in [0, 1] if the global vector is packed as a palette."""
    if method.packing == "palette":
        tenths = np.round(np.abs(values(1, D, 0.3)).clip(0, 1) * 10)
        return SharedContext(LAYOUT, (tenths / 10).astype(np.float32), values(2, D))
    held = method.selection.submodel_mask(LAYOUT, 0, 1, SEED)
    vector = values(1, D)
    return SharedContext(LAYOUT, vector if held is None else vector * held.astype(np.float32), values(2, D), held)


def factored(name: str) -> Float32Array:
    """Return an update whose matrices have two large singular values each, beside many small ones."""
    parts = []
    for number, (shape, size) in enumerate(zip(LAYOUT.shapes, LAYOUT.sizes, strict=True)):
        left, right = values(10 + number, 2 * shape[0], 0.1), values(20 + number, 2 * size // shape[0], 0.01)
        parts.append((left.reshape(-1, 2, 1) * right.reshape(1, 2, -1)).sum(axis=1).reshape(-1))
    return (np.concatenate(parts) + values(6, D, 1e-4)).astype(np.float32) * np.float32(FACTORED_SCALES[name])


class Toy(nn.Module):
    """A network whose weights have the layout of the vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(128, 8, 4, bias=False)
        self.linear = nn.Linear(30, 10)
        self.last = nn.GroupNorm(1, 15)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, 128, 5, 5) to logits (n, 10)."""
        features = self.kernel(x).flatten(1)[:, :30]
        logits: Tensor = self.linear(self.last(features.view(-1, 15, 2)).flatten(1))
        return logits


def trained(method: Method, known: SharedContext) -> Float32Array:
    """Return what a codec encodes: an update that continues the earlier one, or the result of the method's training."""
    if type(method.training) is LocalTraining:
        return (known.drift * np.float32(0.002) + values(6, D, 0.001)).astype(np.float32)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = FlatModel(Toy())
        assert model.layout == LAYOUT
        assert model.dense_sizes == [10, 15, 15]
        model.load(known.vector, model.state()[1])
        task = image_task(128, 5)
        batches = Batches(task, images(20, task), batch_size=4, epochs=2, seed=1)
        return method.training.train(model, TrainContext(batches, 0.01, "float32", SEED, known, private_seed=5)).x


def vector_of(name: str) -> Float32Array:
    """Return what the codec of a payload encodes."""
    if name in FACTORED_SCALES:
        return factored(name)
    method = build(name)
    return trained(method, known_of(method))


def make(name: str, x: Float32Array | None = None) -> bytes:
    """Return a payload of the method, with `x` instead of what it trains or encodes here."""
    method = build(name)
    known = known_of(method)
    if x is None:
        x = vector_of(name)
    with pytest.MonkeyPatch.context() as patch:
        if name.endswith(IN_LANES):
            patch.setattr("fedmrn_app.wire.entropy.LONG", 0)
        body = method.codec.encode(x, known, SEED, 5)
    assert len(body) <= method.codec.limits(LAYOUT).max_bytes
    before = values(3, M)
    update = Update(body, before + values(8, M, 0.01), loss=0.5, train_seconds=2.0, compress_seconds=1.0)
    protocol = agreement_of(method)
    return write_upload(protocol, header_of(protocol, SEED, SAMPLES, D), update, before)


def read(name: str, data: bytes) -> Upload:
    """Read a payload as the server does; behind an @ is its version or form."""
    method = build(name)
    protocol = agreement_of(method)
    return read_upload(data, protocol, header_of(protocol, SEED, SAMPLES, D), known_of(method), values(3, M))

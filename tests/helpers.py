"""What several test files share: small data and a small model, updates, and whole runs in a plain loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from omegaconf import OmegaConf

from fedmrn_app.config.build import build_worker, find_conf
from fedmrn_app.config.compose import load_config
from fedmrn_app.federation.client import ClientState, train_client
from fedmrn_app.federation.loop import run_rounds
from fedmrn_app.federation.protocol import GlobalState, RunProtocol
from fedmrn_app.federation.server import OpenRound
from fedmrn_app.kernels.symbol_rans import Edges
from fedmrn_app.layout import Float32Array, Layout, Shape
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.models.build import build_model
from fedmrn_app.learning.models.cnn import digits
from fedmrn_app.learning.sgd import LocalSettings
from fedmrn_app.methods import build_method, find_methods
from fedmrn_app.methods.method import Codec, LocalTraining, Method, RunOptions, TrainContext
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.noise import Noise, generate_noise
from fedmrn_app.tasks.classification import Classification
from fedmrn_app.tasks.task import Samples
from fedmrn_app.wire.entropy import SymbolReader, encode_symbols
from fedmrn_app.wire.mask_model import SideInformation
from tests.plain.upload import Upload, read_upload

SEED = 77  # that the server gives
LR = 0.1
CLIENT = 2  # who holds a part of the model, where clients hold parts

# methods
METHODS = sorted(find_methods())
# every layout of bodies: a method's name, and behind it the options that the layout comes with
CASES = [
    "-".join([name, *(f"{option}-{value}" for option, value in options.items())])
    for name in METHODS
    for options in find_methods()[name].layouts
]


def make_method(name: str, coder: Any = "auto", noise: Noise | None = None, **options: Any) -> Method:
    """The method as its file in conf/ has it, but for the options given, here or behind the name as in CASES."""
    name, *words = name.split("-")
    options = dict(zip(words[::2], map(yaml.safe_load, words[1::2]), strict=True)) | options
    path = find_conf() / "strategy" / f"{name}.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {"strategy": {}}
    options = {**values["strategy"], **options}
    options.pop("name", None)
    return build_method(name, options, RunOptions(noise or Noise(), seed=3, coder=coder))


# those that train as FedAvg does: what they encode is an update, and it may be any update
COMPRESSORS = [name for name in CASES if type(make_method(name).training) is LocalTraining]

# data and models
IMAGES = Classification(channels=1, height=8, width=8, classes=10, mean=(0.5,), std=(0.5,))


def image_task(channels: int, side: int, classes: int = 10) -> Classification:
    ones = (0.5,) * channels
    return Classification(channels=channels, height=side, width=side, classes=classes, mean=ones, std=ones)


def images(count: int = 40, task: Classification = IMAGES) -> Samples:
    """Noise with random labels."""
    random = np.random.default_rng(0)
    inputs = task.inputs()
    pixels = random.integers(0, 256, (count, *inputs["shape"]), dtype=np.uint8)
    return Samples(pixels, random.integers(0, inputs["classes"], count))


def new_model(*, whole: bool = False) -> FlatModel:
    return FlatModel(build_model(digits, {}, IMAGES, 3), whole=whole)


def new_known(vector: Float32Array | None = None) -> SharedContext:
    """The model is new, or holds `vector`; some of its weights have moved before."""
    model = new_model()
    vector = model.state()[0] if vector is None else vector
    return SharedContext(model.layout, vector, vector * np.linspace(0.5, 1, vector.size, dtype=np.float32))


def local_round(epochs: int = 2, context: SharedContext | None = None) -> TrainContext:
    batches = Batches(IMAGES, images(), batch_size=8, epochs=epochs, seed=1)
    return TrainContext(batches, LR, "float32", SEED, new_known() if context is None else context, private_seed=2)


class Client:
    """One client of a round, its model and what it is sent; some weights have moved before."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.model = new_model(whole=method.whole_model)
        weights, dense = self.model.state()
        vector = method.server.first(weights, self.model.layout)
        before = vector * np.linspace(0.5, 1, vector.size, dtype=np.float32)
        sizes = self.model.dense_sizes
        self.protocol = RunProtocol(
            method=method, layout=self.model.layout, dense_sizes=sizes, initial=before, seed=3, dense_bits=32
        )
        self.samples = images()
        self.round = OpenRound(self.protocol, 1, GlobalState(vector, dense), {CLIENT: len(self.samples)})
        self.order = self.round.order(CLIENT)
        self.context = self.round.context(CLIENT)

    @property
    def layout(self) -> Layout:
        return self.model.layout

    @property
    def seed(self) -> int:
        return self.order.seed

    def train(self, residual: Float32Array | None = None) -> tuple[Upload, Float32Array | None]:
        """Train, and read the reply as the server does; the residual is what the client keeps."""
        settings = LocalSettings(epochs=2, batch_size=8, lr=LR)
        state = ClientState(residual)
        reply = train_client(self.protocol, self.model, IMAGES, self.samples, self.order, local=settings, state=state)
        header = self.round.header(CLIENT, self.context)
        return read_upload(reply.payload, self.protocol, header, self.context, self.round.dense), reply.state.kept


# vectors
GAUSSIAN: Float32Array = np.random.default_rng(7).standard_normal(1 << 20).astype(np.float32)
SHAPES: tuple[Shape, ...] = ((20, 30, 3, 3), (7, 11), (1, 1))


def moved(shapes: Sequence[Shape]) -> SharedContext:
    """A model of which some weights have moved, in both directions."""
    layout = Layout(tuple(shapes))
    vector = np.random.default_rng(5).standard_normal(layout.count).astype(np.float32)
    return SharedContext(layout, vector, np.where(vector > 1, np.float32(0), vector))


def low_rank_update(layout: Layout, rank: int, noise: float = 0.01) -> Float32Array:
    """Return an update whose matrices are sums of `rank` products, and noise."""
    random = np.random.default_rng(rank)
    parts = []
    for shape, size in zip(layout.shapes, layout.sizes, strict=True):
        left, right = random.normal(size=(shape[0], rank)), random.normal(size=(rank, size // shape[0]))
        parts.append((left @ right + noise * random.normal(size=(shape[0], size // shape[0]))).reshape(-1))
    return np.concatenate(parts).astype(np.float32)


def updates(kind: str, count: int) -> Float32Array:
    """A `random`, `sparse`, `constant` or `zero` update."""
    random = np.random.default_rng(4)
    x = random.standard_normal(count).astype(np.float32) * np.float32(1e-3)
    if kind == "sparse":
        x *= random.random(count) < 0.01
    return {"random": x, "sparse": x, "constant": np.full_like(x, 0.01), "zero": np.zeros_like(x)}[kind]


def estimate(codec: Codec, x: Float32Array, seed: int) -> Float32Array:
    """What becomes of an update of one tensor on its way."""
    known = moved(((x.size, 1),))
    return codec.decode(codec.encode(x, known, seed, seed), known, seed)


def squared_error(estimated: NDArray[np.floating], x: NDArray[np.floating]) -> float:
    """The squared error, as a share of the squared norm."""
    return float(np.square(estimated - x, dtype=np.float64).sum() / np.square(x, dtype=np.float64).sum())


def bits_a_weight(codec: Codec, kind: str) -> float:
    count = 1 << 20
    known = moved(((1024, 1024),))
    return 8 * len(codec.encode(updates(kind, count), known, 0, 0)) / count


def noisy_side(shapes: Sequence[Shape]) -> SideInformation:
    """Uniform noise, and a trend of no connection with it."""
    layout = Layout(tuple(shapes))
    n = generate_noise(1, layout.count, "uniform", 1.0)
    sign = np.copysign(np.float32(1), n)
    return SideInformation(layout, np.abs(n), sign, generate_noise(2, layout.count, "uniform", 1.0) * sign)


def codes_every_symbol(model: Edges, size: int) -> bool:
    """Whether each of a model's symbols survives coding."""
    symbols = np.arange(size, dtype=np.int32)
    reader = SymbolReader(encode_symbols([(symbols, model)], lanes=1), lanes=1)
    return np.array_equal(reader.read(model, size), symbols)


# runs
def final_state(overrides: tuple[str, ...]) -> tuple[Float32Array, Float32Array]:
    """Train a whole run and return the weights and the dense part."""
    worker = build_worker(load_config(overrides))
    state = run_rounds(worker)
    return worker.method.server.weights(state.vector, worker.model()[0].layout), state.dense

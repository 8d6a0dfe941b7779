"""What a method is put together from: who gets what, local training, codec, server state.

Each part is a small class with a default that most methods keep. A method's file says which parts it brings; its
options are a `MethodConfig`, which `conf/strategy/<name>.yaml` fills.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.learning.batches import Batches
from fedmrn_app.learning.flat import FlatModel
from fedmrn_app.learning.sgd import Precision, local_sgd
from fedmrn_app.methods.contribution import Contribution, VectorContribution
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.rate_control import RateControl
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.noise import Noise
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.body import Body, Coder
from fedmrn_app.wire.downlink import DownlinkDtype, Packing


@dataclass(frozen=True)
class TrainContext:
    """What a client trains on in one round, and what it knows.

    Attributes:
        batches: the client's batches, S = len(batches) local steps.
        lr: step size of SGD.
        precision: arithmetic of the forward pass.
        weight_decay: see `local_sgd`.
        seed: the 64-bit seed that the server gave this client for this round.
        known: what the server knows too.
        private_seed: 64-bit seed of the method's own randomness; the server does not use it.
        client: its number.
        server_round: number of the round, from 1.
    """

    batches: Batches
    lr: float
    precision: Precision
    seed: int
    known: SharedContext
    private_seed: int
    weight_decay: float = 0.0
    client: int = 0
    server_round: int = 0

    def sgd(
        self,
        model: FlatModel,
        *,
        before_step: Callable[[int], None] | None = None,
        update: Callable[[int], None] | None = None,
    ) -> float:
        """Train `model` on the batches, in place, and return the mean loss; see `local_sgd`."""
        return local_sgd(
            model,
            self.batches,
            self.lr,
            precision=self.precision,
            weight_decay=self.weight_decay,
            before_step=before_step,
            update=update,
        )


@dataclass(frozen=True)
class Trained:
    """What local training gives: `x`, float32 (d,), which the codec is to encode, and the mean loss."""

    x: Float32Array
    loss: float


class LocalTraining:
    """Local training; by default plain SGD, as FedAvg trains, and `x` is the update."""

    def train(self, model: FlatModel, local: TrainContext) -> Trained:
        """Train `model`, which holds the global vector, in place."""
        first = model.weights.clone()
        loss = local.sgd(model)
        return Trained((model.weights - first).cpu().numpy(), loss)


class Codec(ABC):
    """How what was trained becomes bytes, and bytes a contribution to the mean.

    The dense part (biases, batch norm) is trained by every method alike and sent beside the body.
    """

    @abstractmethod
    def encode(self, x: Float32Array, known: SharedContext, seed: int, private_seed: int) -> Body:
        """Encode what was trained, float32 (d,), which is left as it is.

        Args:
            x: what `LocalTraining` gave.
            known: what both sides know.
            seed: the seed that the client was given.
            private_seed: of the client's own randomness.
        """

    @abstractmethod
    def decode(self, body: Body, known: SharedContext, seed: int) -> Float32Array:
        """Return the contribution to the mean that a body stands for, float32 (d,); by default an update.

        Raises:
            PayloadError: the body is not one that `encode` writes for such a model.
        """

    def read(self, body: Body, known: SharedContext, seed: int) -> Contribution:
        """Check and decode a body, to be added later; by default what `decode` returns.

        Raises:
            PayloadError: as `decode`.
        """
        return VectorContribution(self.decode(body, known, seed))

    @property
    def bounded(self) -> bool:
        """Whether no body can stand for more than an honest one may: what the server gave fixes how much, at most."""
        return False

    @property
    def reading_copies(self) -> float | None:
        """Memory that `read` takes, in float32 copies of the model, if several threads may read at once; else None."""
        return None

    def largest_norm(self, layout: Layout) -> float | None:
        """The L2 norm that contributions have at most, whatever the data, but for chance in the seed; None if any."""
        return None

    @abstractmethod
    def max_bytes(self, layout: Layout) -> int:
        """The most bytes that a body takes, which the tests hold the codec to."""


def encode_with_feedback(
    codec: Codec, x: Float32Array, residual: Float32Array, known: SharedContext, seed: int, private_seed: int
) -> tuple[Body, Float32Array]:
    """Error feedback around any codec: encode `x` plus what the last upload left out (Karimireddy et al. 2019).

    Args:
        codec: what it is around.
        x: float32 (d,).
        residual: float32 (d,), what this function returned the last time, or zeros.
        known: as the codec's.
        seed: likewise.
        private_seed: likewise.

    Returns:
        The body and the next residual, float32 (d,).
    """
    x = x + residual
    body = codec.encode(x, known, seed, private_seed)
    return body, x - codec.decode(body, known, seed)


class ServerState:
    """The global vector, float32 (d,), from round to round; by default the masked weights themselves."""

    averages_updates: bool = True  # the mean is of updates, and is added to the vector
    averages_holders: bool = False  # a weight's mean is over its holders; else who does not hold it has not changed it
    counts_participants: bool = False  # the vector depends on how many took part, besides the mean

    def first(self, weights: Float32Array, layout: Layout) -> Float32Array:
        """The vector before training, from the model's first weights; of them or a copy."""
        return weights

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """The next vector from the last one and the weighted mean of what `replies` clients contributed.

        It may take the memory of `mean`.
        """
        mean += vector
        return mean

    def weights(self, vector: Float32Array, layout: Layout) -> Float32Array:
        """The weights that a vector stands for in evaluation; itself where it is they."""
        return vector

    def sampled(self, vector: Float32Array, layout: Layout, seed: int) -> Float32Array | None:
        """Weights drawn from the distribution that a vector stands for; None where it stands for itself."""
        return None


@dataclass(frozen=True)
class Method:
    """A method put together for one run.

    Attributes:
        name: as in `strategy=`.
        code: names the method on the wire; never given to another one.
        codec: update to bytes and back.
        training: of a client in a round.
        server: the global vector from round to round.
        selection: which weights a client gets.
        whole_model: whether all trained parameters are masked weights, biases and batch norm too.
        shared_seed: whether all clients of a round are given one seed.
        packing: how the global vector is sent.
        error_feedback: whether clients add what an upload left out to the next one.
        steering: of the noise's scale, where it is not fixed.
        flips: of the masks' bits, where clients make them.
    """

    name: str
    code: int
    codec: Codec
    training: LocalTraining = field(default_factory=LocalTraining)
    server: ServerState = field(default_factory=ServerState)
    selection: SubmodelSelector = field(default_factory=SubmodelSelector)
    whole_model: bool = False
    shared_seed: bool = False
    packing: Packing = "float32"
    error_feedback: bool = False
    steering: RateControl | None = None
    flips: RandomizedResponse | None = None

    def encode(
        self, x: Float32Array, residual: Float32Array | None, known: SharedContext, seed: int, private_seed: int
    ) -> tuple[Body, Float32Array | None]:
        """Encode what was trained, with error feedback where the method has it.

        Args:
            x: float32 (d,), what local training gave.
            residual: float32 (d,), what this method returned the last time; None the first time.
            known: as the codec's.
            seed: likewise.
            private_seed: likewise.

        Returns:
            The body, and the residual to keep for the next round, None without error feedback.
        """
        if not self.error_feedback:
            return self.codec.encode(x, known, seed, private_seed), None
        before = np.zeros_like(x) if residual is None else residual
        return encode_with_feedback(self.codec, x, before, known, seed, private_seed)

    def client_seed(self, run_seed: int, server_round: int, client: int) -> int:
        """The 64-bit seed that the server gives a client for a round."""
        return derive_seed(run_seed, "noise", server_round, 0 if self.shared_seed else client)


@dataclass(frozen=True)
class RunOptions:
    """What is set for a whole run, whatever the method.

    Attributes:
        noise: the distribution of seeded noise.
        seed: 64 bits, of whatever is random but the same for all clients and rounds.
        coder: whether bodies are coded where that is smaller.
        downlink: how the global vector is sent.
        bits: of a whole reply, per trained parameter, that the noise's scale is steered to; None if it is fixed.
        flips: of the bits of masks, where clients are to make them.
        rounds: of the run, 0 where that is not known.
        clients: of the run, likewise.
    """

    noise: Noise
    seed: int = 0
    coder: Coder = "auto"
    downlink: DownlinkDtype = "float32"
    bits: float | None = None
    flips: RandomizedResponse | None = None
    rounds: int = 0
    clients: int = 0


@dataclass(frozen=True)
class MethodConfig(ABC):
    """A method's options, its fields, and how it is put together from them."""

    name: ClassVar[str]
    code: ClassVar[int]
    layouts: ClassVar[Sequence[Mapping[str, int]]] = ({},)  # options with which bodies have a layout of their own

    @abstractmethod
    def build(self, run: RunOptions) -> Method:
        """Put the method together.

        Raises:
            ConfigError: options that do not go together.
        """

"""The parts of a method: local training, codec, server state, and the selection of weights.

    server                                               client
    ServerState: global vector --[SubmodelSelector]-->   LocalTraining: x
    mean, combine  <--  Codec.read  <--  payload  <--    Codec.encode(x)

Each part is a small class whose default most methods keep. The file of a method defines the parts that differ, and a
`MethodConfig` with its options, which `conf/strategy/<name>.yaml` sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedmrn_app.errors import ConfigError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.contribution import Contribution, VectorContribution
from fedmrn_app.methods.randomized_response import RandomizedResponse
from fedmrn_app.methods.rate_control import RateControl
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.noise import Noise
from fedmrn_app.seeds import derive_seed
from fedmrn_app.wire.body import Body, Coder

if TYPE_CHECKING:
    from fedmrn_app.learning.batches import Batches
    from fedmrn_app.learning.flat import FlatModel
    from fedmrn_app.learning.sgd import Precision

StepHook = Callable[[int], None] | None  # called with the step number t = 1..S


@dataclass(frozen=True)
class TrainContext:
    """The inputs of one client's local training in one round.

    Attributes:
        batches: the client's batches; there are S = len(batches) local steps.
        lr: step size of SGD.
        precision: arithmetic of the forward pass.
        seed: the 64-bit seed that the server gave this client for this round.
        context: what server and client both know.
        private_seed: 64-bit seed of the method's own randomness. The server does not use it, but it is no secret: it
            follows from the run's seed.
        weight_decay: see `local_sgd`.
        client: number of the client.
        server_round: number of the round, from 1.
        kept: what `LocalResult` kept in the client's last round; None in its first, and for methods that keep nothing.
    """

    batches: Batches
    lr: float
    precision: Precision
    seed: int
    context: SharedContext
    _: KW_ONLY
    private_seed: int
    weight_decay: float = 0.0
    client: int = 0
    server_round: int = 0
    kept: Float32Array | None = None

    def sgd(self, model: FlatModel, *, before_step: StepHook = None, update: StepHook = None) -> float:
        """Train `model` on the batches, in place, and return the mean loss; see `local_sgd`."""
        from fedmrn_app.learning.sgd import local_sgd  # codecs are used without PyTorch

        sgd = partial(local_sgd, precision=self.precision, weight_decay=self.weight_decay)
        return sgd(model, self.batches, self.lr, before_step=before_step, update=update)


@dataclass(frozen=True)
class LocalResult:
    """The result of local training.

    Attributes:
        x: what the codec encodes, float32 (d,).
        loss: mean loss.
        kept: what the client keeps for its next round, float32 of any length; None for nothing.
    """

    x: Float32Array
    loss: float
    kept: Float32Array | None = None


class LocalTraining:
    """Local training; by default plain SGD as in FedAvg, so that `x` is the update."""

    learns_masks: ClassVar[bool] = False  # whether forward passes see masked noise, which an optimizer has to provide
    keeps_state: bool = False  # whether a client keeps something for its next round, see `LocalResult`

    def train(self, model: FlatModel, local: TrainContext) -> LocalResult:
        """Train `model`, which holds the global vector, in place."""
        initial = model.weights.clone()
        loss = local.sgd(model)
        return LocalResult(initial.neg_().add_(model.weights).cpu().numpy(), loss)


@dataclass(frozen=True, kw_only=True)
class CodecLimits:
    """The limits of a codec, which hold for any body that it accepts.

    Attributes:
        max_bytes: largest number of bytes of a body.
        max_norm: largest L2 norm of a contribution, up to chance in the seed; None if a body can have any norm.
        read_copies: memory that `Codec.read` takes, in float32 copies of the model, if several threads may call it at
            once; None if only one may.
    """

    max_bytes: int
    max_norm: float | None = None
    read_copies: float | None = None


class Codec(ABC):
    """The map from a trained vector to bytes, and from bytes to a contribution to the mean.

    The dense part (biases, batch norm) is not encoded here: it is trained alike by every method and sent beside the
    body.
    """

    tells_labels: bool = False  # whether a body says which labels the client has
    takes_size: ClassVar[bool] = False  # whether bodies take `SharedContext.bits` where the server sets it

    @abstractmethod
    def encode(self, x: Float32Array, context: SharedContext, seed: int, private_seed: int) -> Body:
        """Return the body of a trained vector.

        Args:
            x: the result of local training, float32 (d,); it is not changed.
            context: what server and client both know.
            seed: the seed that the server gave the client.
            private_seed: seed of the client's own randomness, which is no secret.
        """

    @abstractmethod
    def decode(self, body: Body, context: SharedContext, seed: int) -> Float32Array:
        """Return the contribution to the mean of a body, float32 (d,); by default an update.

        Raises:
            PayloadError: `encode` returns no such body for such a model.
        """

    def read(self, body: Body, context: SharedContext, seed: int) -> Contribution:
        """Check and decode a body once, so that it can be added later, piece by piece.

        Raises:
            PayloadError: as in `decode`.
        """
        return VectorContribution(self.decode(body, context, seed))

    def finish(self, mean: Float32Array, context: SharedContext, seed: int) -> None:  # noqa: B027  (most need none)
        """Turn the mean of contributions into the mean of updates, in place; by default it is that already.

        Args:
            mean: float32 (d,).
            context: what the server and all clients know.
            seed: the seed of all clients, where the method gives them one.
        """

    @abstractmethod
    def limits(self, layout: Layout) -> CodecLimits:
        """Return the limits for a model of this layout."""


class ServerState:
    """The global vector, float32 (d,), from round to round; by default it consists of the masked weights themselves."""

    averages_updates: ClassVar[bool] = True  # whether the mean is one of updates, which is added to the vector
    averages_holders: bool = False  # whether the mean of a weight is over its holders; otherwise it is over all clients
    counts_participants: ClassVar[bool] = False  # whether the vector depends on the number of replies

    def first(self, weights: Float32Array, layout: Layout) -> Float32Array:
        """Return the vector before the first round, from the initial weights of the model."""
        return weights

    def combine(self, vector: Float32Array, mean: Float32Array, replies: int) -> Float32Array:
        """Return the next vector.

        Args:
            vector: the vector of this round.
            mean: weighted mean of the clients' contributions, float32 (d,); its memory may be reused.
            replies: number of clients in the mean.
        """
        mean += vector
        return mean

    def weights(self, vector: Float32Array, layout: Layout) -> Float32Array:
        """Return the weights of a vector for evaluation, float32 (d,); it may be the vector itself."""
        return vector

    def sampled(self, vector: Float32Array, layout: Layout, seed: int) -> Float32Array | None:
        """Return weights drawn from the distribution that a vector describes; None if it describes none."""
        return None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method with all its parts, for one run.

    Attributes:
        name: as in `strategy=`.
        code: number of the method on the wire; it is never given to another method.
        codec: from trained vectors to bytes and back.
        training: local training of a client.
        server: the global vector from round to round.
        selection: the weights that a client receives.
        whole_model: whether all trained parameters are masked weights, biases and batch norm too.
        shared_seed: whether all clients of a round are given one seed.
        packing: how the global vector is sent, a form of `federation/downlinks.py`.
        error_feedback: whether clients add to each update what the last upload left out.
        rate_control: control of the noise's scale; None if the scale is fixed.
        randomized_response: of the bits of masks; None if clients send them as they are.
        adds_masks: whether the mean follows from the sum of the clients' masks, which they send with a bit per weight.
    """

    name: str
    code: int
    codec: Codec
    training: LocalTraining = field(default_factory=LocalTraining)
    server: ServerState = field(default_factory=ServerState)
    selection: SubmodelSelector = field(default_factory=SubmodelSelector)
    whole_model: bool = False
    shared_seed: bool = False
    packing: str = "float32"
    error_feedback: bool = False
    rate_control: RateControl | None = None
    randomized_response: RandomizedResponse | None = None
    adds_masks: bool = False

    def encode(
        self, x: Float32Array, residual: Float32Array | None, context: SharedContext, seed: int, private_seed: int
    ) -> tuple[Body, Float32Array | None]:
        """Encode a trained vector, with error feedback where the method has it (Karimireddy et al. 2019, Algorithm 1).

        Args:
            x: the result of local training, float32 (d,).
            residual: what this method returned in the client's last round, float32 (d,); None in its first round.
            context: as in `Codec.encode`, like both seeds.
            seed: the seed that the server gave the client.
            private_seed: seed of the client's own randomness, which is no secret.

        Returns:
            The body, and what it leaves out of `x` plus the last residual; None without error feedback.
        """
        if not self.error_feedback:
            return self.codec.encode(x, context, seed, private_seed), None
        x = x + (np.zeros_like(x) if residual is None else residual)
        body = self.codec.encode(x, context, seed, private_seed)
        return body, x - self.codec.decode(body, context, seed)

    def client_seed(self, run_seed: int, server_round: int, client: int) -> int:
        """Return the 64-bit seed that the server gives a client for a round."""
        return derive_seed(run_seed, "noise", server_round, 0 if self.shared_seed else client)

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep something on their disk from round to round."""
        return self.error_feedback or self.training.keeps_state

    @property
    def works_on_arrays(self) -> bool:
        """Whether the method works on the arrays of any app, as the plug-in requires.

        Clients train as in FedAvg or learn masks, each has a seed of its own, and the server averages updates of all
        matrices and kernels.
        """
        return (
            (type(self.training) is LocalTraining or self.training.learns_masks)
            and type(self.server) is ServerState
            and type(self.selection) is SubmodelSelector
            and not (self.whole_model or self.shared_seed)
        )


@dataclass(frozen=True)
class RunOptions:
    """Options of a whole run that are not those of one method.

    Attributes:
        noise: distribution of seeded noise.
        seed: 64-bit seed of everything random that is the same for all clients and rounds.
        coder: whether bodies are coded where that makes them shorter.
        downlink: how the global vector is sent.
        bits: budget of a whole reply in bits per trained parameter, for rate control; None for a fixed scale.
        randomized_response: of the bits of masks; None for none.
        rounds: number of rounds; 0 if it is unknown.
        clients: number of clients; 0 if it is unknown.
        secure: whether the server learns only the sum of masks.
        budget: budget of the whole run, as the configuration has it; then the server sets the size of each round's
            replies. None without.
    """

    noise: Noise
    seed: int = 0
    _: KW_ONLY
    coder: Coder = "auto"
    downlink: str = "float32"
    bits: float | None = None
    randomized_response: RandomizedResponse | None = None
    rounds: int = 0
    clients: int = 0
    secure: bool = False
    budget: float | str | None = None


@dataclass(frozen=True)
class MethodConfig(ABC):
    """The options of a method, as fields, and the method that they make."""

    name: ClassVar[str]
    code: ClassVar[int]  # from 1 to 255, see `Method`
    layouts: ClassVar[Sequence[Mapping[str, int | str]]] = ({},)  # options for which bodies have a layout of their own

    @abstractmethod
    def build(self, run: RunOptions) -> Method:
        """Return the method.

        Raises:
            ConfigError: options contradict each other.
        """

    def compressor(self, run: RunOptions, codec: Codec, *, error_feedback: bool = False) -> Method:
        """Return a method in which clients train as in FedAvg and a codec compresses their updates."""
        return Method(name=self.name, code=self.code, codec=codec, packing=run.downlink, error_feedback=error_feedback)


def conflict(key: str, value: object, reason: str) -> ConfigError:
    """Return the refusal of the value of a configuration key that contradicts other options."""
    shown = f"{value:g}" if isinstance(value, float) else value
    return ConfigError(f"{key}={shown}: {reason}", code="conflict", key=key, value=value)


Recipe = MethodConfig  # former names
Trained = LocalResult

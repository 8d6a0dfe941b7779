"""The protocol of a run, which server and clients share before the first round, and the order for one client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.federation.budget import Budget, BudgetState
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.methods.method import Method
from fedmrn_app.methods.rate_control import least_mask_bits, limited_scale
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.validation import Range
from fedmrn_app.wire.dense import usual_dense_bytes
from fedmrn_app.wire.downlink import LATTICE_STEP
from fedmrn_app.wire.payload import HEADER_SIZE

if TYPE_CHECKING:
    from fedmrn_app.learning.flat import FlatModel

# Attributes of `GlobalState` that not every run has, and the names under which they are stored and sent.
OPTIONAL = {"rate_state": "steering", "published": "published", "budget_state": "budget"}

Aggregation = Literal["mean", "median", "trimmed_mean", "krum"]  # how updates become one, see `robust.py`


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the server makes the next model from the replies of a round; each attribute is a key of the configuration.

    Attributes:
        aggregation: `mean`, or the robust mean that takes its place, see `federation/robust.py`.
        max_share: largest share of a client in the mean of a round, above 0 and below 1; None for no limit.
        server_lr: factor of the mean update, above 0.
    """

    aggregation: Aggregation = "mean"
    max_share: Annotated[float, Range(above=0, below=1)] | None = None
    server_lr: Annotated[float, Range(above=0, most=100)] = 1.0

    def server_settings(self) -> dict[str, Any]:
        """Return the values of these attributes."""
        return {each.name: getattr(self, each.name) for each in fields(ServerSettings)}


@dataclass(frozen=True, kw_only=True)
class RunProtocol(ServerSettings):
    """What server and clients know before the first round; a client with a narrower model has a protocol of its own.

    Attributes:
        method: the method.
        layout: of the masked tensors, d elements in all.
        dense_sizes: number of elements of each tensor of the dense part, m in all.
        initial: the global vector before the first round, float32 (d,).
        seed: the run's seed.
        dense_bits: bits of a value of the dense part, see `wire/dense.py`.
        parameters: number of trained parameters, by which bits per parameter are counted.
        lattice_step: step of the lattice on which the vector is sent, see `wire/lattice.py`.
        first_dense: the dense part before the first round, float32 (m,); None for zeros.
        max_norm: largest norm of a reply, as a multiple of the round's median; None for no limit.
        equal_weights: whether each client counts the same in the mean; otherwise a client counts by its samples.
        confirmed: the operator's number of samples of each client, which replaces what clients state; None without.
        framing_bytes: bytes that the transport adds to a payload, which the rate control counts.
        budget: budget of bits of the whole run; None if each round has the size that the method's options say.
        scale_limit: largest scale of the noise that a rate control sets, in root mean squares of the weights.
        sends_uneven_exactly: whether clients send a dense tensor in float32 where one step does not suit its values,
            see `is_even`. The plug-in sends such tensors beside the payload.
    """

    method: Method
    layout: Layout
    dense_sizes: Sequence[int]
    initial: Float32Array
    seed: int
    dense_bits: int
    parameters: int = 0
    lattice_step: float = LATTICE_STEP
    first_dense: Float32Array | None = None
    max_norm: float | None = None
    equal_weights: bool = False
    confirmed: Mapping[int, int] | None = None
    framing_bytes: int = 180  # of a Flower message
    budget: Budget | None = None
    scale_limit: float = math.inf
    sends_uneven_exactly: bool = True

    @classmethod
    def of(cls, method: Method, model: FlatModel, *, seed: int, dense_bits: int, **settings: Any) -> RunProtocol:
        """Return the protocol for a model that holds its initial weights; `settings` are further attributes."""
        weights, dense = model.state()
        return cls(
            method=method,
            layout=model.layout,
            dense_sizes=model.dense_sizes,
            initial=method.server.first(weights, model.layout),
            seed=seed,
            dense_bits=dense_bits,
            parameters=model.parameter_count,
            first_dense=dense,
            **settings,
        )

    def weight(self, samples: int) -> int:
        """Return the weight in the mean of a client with this number of samples."""
        return 1 if self.equal_weights else samples

    def begin(self) -> GlobalState:
        """Return the global state before the first round."""
        control, budget_state = self.method.rate_control, None if self.budget is None else BudgetState().to_array()
        rate_state = None
        if control is not None:
            least = least_mask_bits(self.layout.count)
            rate_state = control.first(max(least, self.body_bits(self.reply_bits(budget_state))))
            rate_state = self.limited(rate_state, self.initial)
        return GlobalState(self.initial, self.initial_dense, rate_state, budget_state=budget_state)

    def limited(self, rate_state: Float32Array | None, vector: Float32Array) -> Float32Array | None:
        """Return the state of the rate control with a scale that the weights of the next round bear."""
        if rate_state is None or math.isinf(self.scale_limit):
            return rate_state
        square = float(np.square(vector, dtype=np.float64).mean())
        return limited_scale(rate_state, self.scale_limit * math.sqrt(square))

    def reply_bits(self, budget_state: NDArray[np.float64] | None) -> float:
        """Return the bits per trained parameter that a reply of the next round is to take."""
        if self.budget is None or budget_state is None:
            return math.nan if self.method.rate_control is None else self.method.rate_control.bits
        return self.budget.share(BudgetState.from_array(budget_state))

    def body_bits(self, reply_bits: float) -> float:
        """Return the bits per masked weight that a reply of this size leaves for the method's body."""
        return (reply_bits * self.parameters - self.bits_beside) / self.layout.count

    def budget_left(self, state: GlobalState) -> float:
        """Return the bits per parameter that the budget leaves for all rounds to come; NaN without one."""
        if self.budget is None or state.budget_state is None:
            return math.nan
        return self.budget.left(BudgetState.from_array(state.budget_state))

    def context(self, values: Float32Array, held: NDArray[np.bool_] | None) -> SharedContext:
        """Return what both sides know after clients received these float32 values of the weights that they hold."""
        if held is None:
            return SharedContext(self.layout, values, self.initial)
        vector = np.zeros(held.size, np.float32)
        vector[held] = values
        return SharedContext(self.layout, vector, self.initial, held)

    @property
    def bits_beside(self) -> float:
        """Estimated bits of a reply outside the method's body: header, dense part, and framing."""
        dense = usual_dense_bytes(self.dense_sizes, self.dense_bits)
        return 8 * (HEADER_SIZE + dense + self.framing_bytes)

    @property
    def initial_dense(self) -> Float32Array:
        """The dense part before the first round, float32 (m,)."""
        return np.zeros(sum(self.dense_sizes), np.float32) if self.first_dense is None else self.first_dense


@dataclass(frozen=True)
class GlobalState:
    """The state of the server between two rounds.

    Attributes:
        vector: the method's global vector, float32 (d,).
        dense: the dense part, float32 (m,).
        rate_state: state of the rate control, see `methods/rate_control.py`; None where the noise's scale is fixed.
        published: the model that was sent last, as `Lattice.to_array`; None where the downlink does not depend on it.
        budget_state: what the run has spent of its budget, as `BudgetState.to_array`; None without a budget.
    """

    vector: Float32Array
    dense: Float32Array
    rate_state: Float32Array | None = None
    published: NDArray[np.int32] | None = None
    budget_state: NDArray[np.float64] | None = None

    def optional(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that not every run has, by the names under which they are stored and sent."""
        found = {name: getattr(self, attribute) for attribute, name in OPTIONAL.items()}
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def of(cls, vector: Float32Array, dense: Float32Array, optional: Mapping[str, NDArray[Any]]) -> GlobalState:
        """Return the state with the arrays that `optional` has returned; others are ignored."""
        return cls(vector, dense, **{key: optional[name] for key, name in OPTIONAL.items() if name in optional})


@dataclass(frozen=True)
class Order:
    """What the server sends one client in one round.

    Attributes:
        client: number of the client.
        server_round: number of the round, from 1.
        seed: the 64-bit seed that the client is given.
        vector: the global vector in the form of the downlink; on a lattice, bytes that hold the dense part too.
        dense: the global dense part, float32 (m,); None on a lattice.
        base: round of the version from which the lattice is coded; 0 is the initial model.
        checksum: of that version, see `Lattice.checksum`; 0 for the initial model.
        scale: scale of the noise in this round, where the server sets it.
        bits: bits per masked weight that the method's body is to take, where the server sets it.
    """

    client: int
    server_round: int
    seed: int
    vector: NDArray[Any] | bytes = b""
    dense: Float32Array | None = None
    _: KW_ONLY
    base: int = 0
    checksum: int = 0
    scale: float | None = None
    bits: float | None = None

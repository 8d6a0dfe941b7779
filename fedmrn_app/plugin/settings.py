"""What the server tells a client beside the arrays: the method, and this round's seed and scale of the noise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord
from numpy.typing import NDArray

from fedmrn_app.errors import ConfigError, PayloadError
from fedmrn_app.federation.protocol import RunProtocol
from fedmrn_app.layout import Float32Array
from fedmrn_app.methods import build_method
from fedmrn_app.methods.fedmrn import MaskedTraining
from fedmrn_app.methods.method import LocalTraining, Method, RunOptions, ServerState
from fedmrn_app.methods.shared_context import SharedContext
from fedmrn_app.methods.submodel_selection import SubmodelSelector
from fedmrn_app.noise import Distribution, Noise
from fedmrn_app.plugin.arrays import Parts, Values
from fedmrn_app.validation import build
from fedmrn_app.wire.dense import DENSE_BITS

RECORD = "fedmrn"  # of a message, with the terms; and of a reply, with the payload


@dataclass(frozen=True)
class PluginSettings:
    """What is the same for all clients and rounds.

    Attributes:
        method: its name.
        options: as `strategy=NAME` has them.
        distribution: of seeded noise.
        alpha: its scale, that of the first round where it is steered.
        bits: see `RunOptions`.
        dense_bits: how a value of the dense part is written, see `wire/dense.py`.
        seed: 56 bits, of whatever is random.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    distribution: Distribution = "uniform"
    alpha: float = 1e-2
    bits: float | None = None
    dense_bits: int = 6
    seed: int = 0

    def build(self) -> Method:
        """Put the method together.

        Raises:
            ConfigError: it, or an option, is not one that works on an app's arrays.
        """
        noise = build(Noise, {"distribution": self.distribution, "alpha": self.alpha})
        method = build_method(self.method, self.options, RunOptions(noise, self.seed, bits=self.bits))
        learns = learns_masks(method)
        usual = (
            type(method.server) is ServerState and type(method.selection) is SubmodelSelector and not method.whole_model
        )
        if not usual or method.shared_seed or not (learns or type(method.training) is LocalTraining):
            raise ConfigError(
                f"method={self.method}: works in the fedmrn command only; take fedmrn, fedmrns, eden, drive, signsgd, "
                "topk, terngrad or fedavg"
            )
        if self.bits is not None and method.steering is None:
            raise ConfigError(
                f"bits={self.bits:g}: {self.method} has no noise whose scale could be set; leave bits out"
            )
        if self.dense_bits not in DENSE_BITS:
            raise ConfigError(f"dense_bits={self.dense_bits}: must be one of {', '.join(map(str, DENSE_BITS))}")
        return method


def learns_masks(method: Method) -> bool:
    """Whether the update is learned as a mask while the client trains, and not compressed afterwards."""
    return isinstance(method.training, MaskedTraining)


@dataclass(frozen=True)
class ClientTask:
    """What one client is asked in one round.

    Attributes:
        terms: of the run.
        seed: the 64-bit seed that this client is given.
        scale: of the noise, where it is steered.
    """

    terms: PluginSettings
    seed: int
    scale: float | None = None

    def record(self) -> ConfigRecord:
        """As it travels."""
        record = ConfigRecord({"terms": json.dumps(vars(self.terms), separators=(",", ":")), "seed": self.seed})
        if self.scale is not None:
            record["scale"] = self.scale
        return record

    @classmethod
    def read(cls, record: ConfigRecord) -> ClientTask:
        """The inverse of `record`."""
        values = cast(Mapping[str, Any], record)
        return cls(PluginSettings(**json.loads(values["terms"])), values["seed"], values.get("scale"))


@dataclass(frozen=True)
class Shared:
    """What server and client both know of a round: the arrays that were sent, and how they are sent back."""

    protocol: RunProtocol
    parts: Parts
    known: SharedContext
    dense: Float32Array

    @classmethod
    def of(cls, method: Method, task: ClientTask, values: Values, ways: NDArray[np.uint8]) -> Shared:
        """Work it out, both sides alike.

        Raises:
            PayloadError: what is sent is not finite.
        """
        parts = Parts.of(values, ways)
        vector, dense = parts.vector(values), parts.dense_vector(values)
        if not (np.isfinite(vector).all() and np.isfinite(dense).all()):
            raise PayloadError("the arrays that the server sent are not finite")
        protocol = RunProtocol(
            method=method,
            layout=parts.layout,
            dense_sizes=parts.dense_sizes,
            first=vector,
            seed=task.terms.seed,
            dense_bits=task.terms.dense_bits,
        )
        # the first vector is not known to who joins late: what has moved so far is left out
        known = SharedContext(parts.layout, vector, vector).with_scale(task.scale)
        return cls(protocol, parts, known, dense)

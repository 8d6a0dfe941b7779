"""What the server and a client of a round both know before the client trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import LARGE, Float32Array, Layout, Runs
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA, Noise

if TYPE_CHECKING:
    from fedmrn_app.wire.adaptive_levels import Trends
    from fedmrn_app.wire.mask_model import Motion, Part

LEAST_BITS = 1e-3  # smallest size of a body that the server asks for, in bits per masked weight


@dataclass(eq=False)
class SharedContext:
    """The global model as server and client both know it.

    It keeps the last noise, the vector, the drift and the trends that it computed; nothing else changes.

    Attributes:
        layout: layout of the masked tensors, d elements in all.
        values: the global vector as clients received it, float32 (d,); zero where a client does not hold a weight. Or
            what returns it, because a server that only reads replies may not need it.
        initial: the global vector before the first round, float32 (d,).
        submodel_mask: the weights that this client holds, bool (d,); None if all clients hold all weights.
        scale: scale of the noise in this round; None for that of the distribution.
        bits: bits per masked weight that a body is to take in this round; None for what the codec's options say. Only
            the client needs it.
        moved: returns how far a part of a tensor, which is given by its number, is from its initial value, float32
            (k,), where that was sent. None for the difference of `vector` and `initial`, whose last bits depend on the
            processor that computed `initial`.
    """

    layout: Layout
    values: Float32Array | Callable[[], Float32Array]
    initial: Float32Array
    submodel_mask: NDArray[np.bool_] | None = None
    _: KW_ONLY
    scale: float | None = None
    bits: float | None = None
    moved: Callable[[int, slice | Runs], Float32Array] | None = None
    _noise: tuple[Noise, int, Float32Array] | None = field(default=None, init=False, repr=False)
    _drift: Float32Array | None = field(default=None, init=False, repr=False)
    _drift_scales: list[np.float32] | None = field(default=None, init=False, repr=False)
    _trends: Trends | None = field(default=None, init=False, repr=False)
    _lock: RLock = field(default_factory=RLock, init=False, repr=False)

    @property
    def count(self) -> int:
        """The number of masked weights, d."""
        return self.layout.count

    @property
    def vector(self) -> Float32Array:
        """The global vector as clients received it, float32 (d,); do not modify it."""
        with self._lock:
            if callable(self.values):
                self.values = self.values()
            return self.values

    def held_weights(self) -> NDArray[np.bool_]:
        """Return the weights that the client holds, bool (d,)."""
        return np.ones(self.count, np.bool_) if self.submodel_mask is None else self.submodel_mask

    def noise(self, distribution: Noise, seed: int) -> Float32Array:
        """Return `G(seed)` for all weights, float32 (d,); the last one is cached, do not modify it."""
        cached = self._noise
        if cached is None or cached[:2] != (distribution, seed):
            cached = self._noise = None  # frees its memory before the next one is generated
            cached = self._noise = distribution, seed, self.scaled(distribution)(seed, self.count)
        return cached[2]

    def known_noise(self, distribution: Noise, seed: int) -> Float32Array | None:
        """Return what `noise` returns if it is the one that is cached, or else None."""
        cached = self._noise
        return None if cached is None or cached[:2] != (distribution, seed) else cached[2]

    def scaled(self, distribution: Noise) -> Noise:
        """Return the distribution with the scale of this round."""
        return distribution if self.scale is None else replace(distribution, alpha=self.scale)

    def with_scale(self, scale: float | None, bits: float | None = None) -> SharedContext:
        """Return this context with what the server set for the round: the scale of the noise, or the size of bodies.

        Raises:
            PayloadError: one of them is out of range.
        """
        if bits is not None and not LEAST_BITS <= bits <= 32:
            reason = f"the server asks for bodies of {bits} bits per weight, outside [{LEAST_BITS}, 32]"
            raise PayloadError(reason, code="body-bits", key="bits", value=bits)
        if scale is None:
            return self if bits is None else replace(self, bits=bits)
        if not MIN_ALPHA <= scale <= MAX_ALPHA:
            raise PayloadError(
                f"the server sent the noise scale {scale}, outside [{MIN_ALPHA}, {MAX_ALPHA}]",
                code="noise-scale",
                key="scale",
                value=scale,
            )
        return replace(self, scale=scale, bits=bits)

    @property
    def drift(self) -> Float32Array:
        """The direction in which each weight has moved so far, float32 (d,) in [-1, 1]; do not modify it."""
        from fedmrn_app.wire.mask_model import softsign  # Numba takes most of what an import loads

        with self._lock:  # several threads may decode replies; one of them computes it
            if self._drift is None:
                self._drift = softsign(self.layout, self._moved)
            return self._drift

    def drift_of(self, part: Part, runs: slice) -> Float32Array:
        """Return the drift of some runs of a part of a tensor, float32 (runs, width).

        That of a large model is made where it is needed, so that it takes no memory.
        """
        if self._drift is not None or self.count < LARGE:
            return np.ascontiguousarray(part.view(self.drift)[runs])
        from fedmrn_app.kernels.softsign import fill_softsign  # with Numba, as above

        x = np.ascontiguousarray(self._moved(part.tensor, part.elements(runs)))
        drift = np.empty_like(x)
        fill_softsign(x.reshape(-1), self._scales()[part.tensor], drift.reshape(-1))
        return drift

    def _scales(self) -> list[np.float32]:
        """Return the scales of `softsign` of all tensors."""
        from fedmrn_app.wire.mask_model import softsign_scale

        with self._lock:
            if self._drift_scales is None:
                sizes = enumerate(self.layout.sizes)
                self._drift_scales = [softsign_scale(self._moved, tensor, size) for tensor, size in sizes]
            return self._drift_scales

    @property
    def trends(self) -> Trends:
        """The drift in 16 levels with a sign, int8 (d,), as `trends_of` returns it; do not modify it.

        It is computed block by block, so that the drift of a large model takes no memory.
        """
        with self._lock:
            if self._trends is None:
                self._trends = self._new_trends()
            return self._trends

    def _new_trends(self) -> Trends:
        from fedmrn_app.wire.adaptive_levels import trends_by_parts, trends_of  # Numba takes most of an import

        return trends_by_parts(self.layout, self._moved) if self._drift is None else trends_of(self._drift)

    def _moved(self, tensor: int, part: slice | Runs) -> Float32Array:
        """Return how far some weights of a tensor are from their initial values, float32 of the part's shape."""
        if self.moved is not None:
            return self.moved(tensor, part)
        place = self.layout.slices[tensor]
        now, before = self.vector[place], self.initial[place]
        return now[part] - before[part] if isinstance(part, slice) else part.of(now) - part.of(before)

    def motion(self) -> Motion:
        """Return as side information how far each weight has moved so far, which hints at how far it will move."""
        from fedmrn_app.wire.mask_model import Motion  # Numba takes most of what an import loads

        return Motion(self.layout, self.drift_of)

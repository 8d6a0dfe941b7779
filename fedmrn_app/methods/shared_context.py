"""What the server and a client of a round both know before anybody trains."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.noise import MAX_ALPHA, MIN_ALPHA, Noise
from fedmrn_app.wire.mask_model import SideInformation, stride

_BLOCK = 1 << 15  # elements at a time, so that temporaries stay in cache


@dataclass(frozen=True)
class SharedContext:
    """What both sides know of the global model.

    Attributes:
        layout: of the masked tensors, d elements in all.
        vector: the global vector as clients received it, float32 (d,); zero what a client does not hold.
        first: the global vector before the first round, float32 (d,).
        held: which weights this client holds, bool (d,), where clients hold different ones; else None.
        scale: of the noise, where the server sets it for each round; None for that of the distribution.
    """

    layout: Layout
    vector: Float32Array
    first: Float32Array
    held: NDArray[np.bool_] | None = None
    scale: float | None = None
    _noise: dict[tuple[Noise, int], Float32Array] = field(default_factory=dict, repr=False, compare=False)
    _trend: list[Float32Array] = field(default_factory=list, init=False, repr=False, compare=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @property
    def count(self) -> int:
        """d, the number of masked weights."""
        return self.vector.size

    def held_weights(self) -> NDArray[np.bool_]:
        """Which weights the client holds, bool (d,)."""
        return np.ones(self.count, np.bool_) if self.held is None else self.held

    def noise(self, distribution: Noise, seed: int) -> Float32Array:
        """`G(seed)` for all weights, float32 (d,), not to be changed; the last one is kept for whoever needs it too."""
        if (distribution, seed) not in self._noise:
            self._noise.clear()
            self._noise[distribution, seed] = self.scaled(distribution)(seed, self.count)
        return self._noise[distribution, seed]

    def scaled(self, distribution: Noise) -> Noise:
        """The distribution with the scale of this round."""
        return distribution if self.scale is None else replace(distribution, alpha=self.scale)

    def with_scale(self, scale: float | None) -> SharedContext:
        """The same with the scale that the server set for this round.

        Raises:
            PayloadError: it is out of range.
        """
        if scale is not None and not MIN_ALPHA <= scale <= MAX_ALPHA:
            raise PayloadError(f"the server sent the noise scale {scale}, which is out of range")
        return self if scale is None else replace(self, scale=scale)

    @property
    def trend(self) -> Float32Array:
        """Where each weight has moved so far, float32 (d,) in [-1, 1]; found once, whichever thread asks first."""
        with self._lock:
            if not self._trend:
                self._trend.append(softsign(self.vector - self.first, self.layout))
            return self._trend[0]

    def motion(self) -> SideInformation:
        """How much each weight has moved so far, which hints at how much it will move."""
        return SideInformation(self.layout, np.abs(self.trend))


def softsign(x: Float32Array, layout: Layout) -> Float32Array:
    """x / (|x| + s) in [-1, 1], s being three times the median |x| of some nonzero elements of each tensor.

    It takes the memory of `x`.
    """
    for tensor in layout.split(x):
        sample = np.abs(tensor[:: stride(tensor.size, 4096)])
        sample = np.sort(sample[sample > 0])
        scale = np.float32(3) * sample[sample.size // 2] if sample.size else np.float32(1)
        for start in range(0, tensor.size, _BLOCK):
            part = tensor[start : start + _BLOCK]
            part /= np.abs(part) + scale
    return x

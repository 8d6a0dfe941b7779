"""Scales of the noise that a client sets by itself while it trains, one power of two per masked tensor.

The scale of a tensor follows the root mean square of what the tensor has learned so far. Powers of two keep all
products exact, so that a mask of `u` and noise times 2^e is the mask of u / 2^e and the noise, which is what the codec
writes and reads. The exponents travel beside the payload, a byte per tensor.

A mask stands for a part of the update only: noise of the wrong sign is dropped, and an update beyond its noise is
clipped. With noise of twice the update's root mean square a mask has the least error for its length. It then stands on
average for 0.31 of a normally distributed update and for 0.27 of a Laplace distributed one, or twice that if masks are
signed. Masks are therefore drawn for a multiple of the update, which makes the mean update about as long as it is.

The noise of a mask is several times as long as the update. Where an update is about as large as the weights themselves,
such noise would drown them, and the gradients that it causes would make the update, and with it the noise, still
larger. Scales are therefore limited to a multiple of the root mean square of the weights that were sent. Larger updates
are clipped, as with a scale that the server sets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.errors import PayloadError
from fedmrn_app.layout import Float32Array, Layout
from fedmrn_app.plugin.scale_limit import LIMIT

if TYPE_CHECKING:
    from torch import Tensor

    from fedmrn_app.kernels.masking import MaskKind

SCALES = "scales"  # field of a reply with the exponents; of a message whether the server wants them and can read them
RATIO = 2.0  # of the scale to the root mean square of what is masked
MAX_EXPONENT = 64

Exponents = NDArray[np.int8]


def gain_of(kind: MaskKind) -> float:
    """Return the factor of an update for which its mask is drawn, so that the mask is about as long."""
    return 2.0 if kind.signed else 4.0


class OwnScales:
    """The exponents of a training's scales.

    Attributes:
        exponents: of each tensor, int8 (tensors,).
    """

    def __init__(self, layout: Layout, alpha: float, w: Tensor) -> None:
        """Take the scales as they are before the training.

        Args:
            layout: of the masked tensors.
            alpha: scale of the noise that the exponents multiply.
            w: the weights that were sent, float32 (d,). A tensor of zeros limits no scale.
        """
        self._layout, self._alpha = layout, alpha
        self.exponents: Exponents = np.zeros(len(layout.sizes), np.int8)
        self._largest = [LIMIT * size or math.inf for size in self._sizes(w)]

    def follow(self, u: Tensor, n: Tensor) -> bool:
        """Set the scales by what has been learned, rescale the noise in place, and return whether any changed.

        Args:
            u: what is masked, float32 (d,).
            n: the noise, float32 (d,).
        """
        changed = False
        for number, (part, size) in enumerate(zip(self._layout.slices, self._sizes(u), strict=True)):
            if not 0 < size < math.inf:
                continue
            wanted = round(math.log2(min(RATIO * size, self._largest[number]) / self._alpha))
            wanted = max(-MAX_EXPONENT, min(MAX_EXPONENT, wanted))
            if wanted != self.exponents[number]:
                n[part] *= 2.0 ** (wanted - int(self.exponents[number]))
                self.exponents[number] = wanted
                changed = True
        return changed

    def _sizes(self, x: Tensor) -> list[float]:
        """Return the root mean square of each tensor of a vector (d,); 0 for an empty tensor."""
        import torch  # the server reads scales without it

        norms = torch.stack([x[part].norm() for part in self._layout.slices]).tolist()
        return [norm / math.sqrt(max(1, size)) for norm, size in zip(norms, self._layout.sizes, strict=True)]


def rescaled(
    vector: Float32Array, layout: Layout, exponents: Exponents, sign: int, out: Float32Array | None = None
) -> Float32Array:
    """Return a vector with each tensor times 2^(sign e), float32 (d,), in `out` if it is given."""
    scaled = np.empty_like(vector) if out is None else out
    for part, tensor, exponent in zip(layout.split(scaled), layout.split(vector), exponents, strict=True):
        np.multiply(tensor, np.float32(2.0 ** (sign * int(exponent))), out=part)
    return scaled


def read_exponents(record: Mapping[str, object], tensors: int) -> Exponents | None:
    """Return the exponents of a reply; None if it has none.

    Raises:
        PayloadError: there is not one within bounds for each coded tensor.
    """
    data = record.get(SCALES)
    if data is None:
        return None
    if isinstance(data, bytes) and len(data) == tensors:
        exponents = np.frombuffer(data, np.int8)
        if np.all(np.abs(exponents.astype(np.int16)) <= MAX_EXPONENT):
            return exponents
    reason = f"reply has no scales of the noise between 2^-{MAX_EXPONENT} and 2^{MAX_EXPONENT} for {tensors} tensors"
    raise PayloadError(reason, code="noise-scale", key=SCALES)

"""EDEN at one bit: the rotated update, quantised to the centroids of a normal variable (Vargaftik et al. 2022).

With one bit the centroids are +-sqrt(2 / pi), and the scale norm2(x)^2 / <Q(R x), R x> makes the estimate unbiased. Up
to rounding that is DRIVE with its unbiased scale; at more bits the two differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmrn_app.layout import Float32Array
from fedmrn_app.methods.drive import RotatedSigns, ratio_or_zero
from fedmrn_app.methods.method import Method, Recipe, RunOptions


class EdenSigns(RotatedSigns):
    """Two centroids."""

    centroid: ClassVar[float] = math.sqrt(2 / math.pi)

    def block_scales(self, rotated: Float32Array) -> Float32Array:
        """norm2^2 / <Q(R x), R x> of each row, Q being the sign times the centroid."""
        return ratio_or_zero(np.square(rotated).sum(1), np.float32(self.centroid) * np.abs(rotated).sum(1))


@dataclass(frozen=True)
class Eden(Recipe):
    """Options: `error_feedback` adds what an upload misses to the next update."""

    name = "eden"
    code = 8

    error_feedback: bool = False

    def build(self, run: RunOptions) -> Method:
        """Plain SGD, then signs of the rotated update."""
        return Method(self.name, self.code, EdenSigns(), packing=run.downlink, error_feedback=self.error_feedback)

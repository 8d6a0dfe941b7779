"""Constants and tables of the adaptive coder of levels; `level_coder.py` describes the model.

All tables hold integers. They are rounded from float64; no unrounded value lies so close to a half that the last digits
of a logarithm could decide, so that every machine computes the same tables.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmrn_app.layout import Layout

MAX_LEVEL: Final = 15 + (1 << 14) - 1  # largest magnitude of a level
UNIT: Final = 256  # steps of a value, within a step of the quantizer, and of a logarithm in nats
HALF_SHARE: Final = 1 << 15  # probability 1/2; shares are in steps of 2^-16

INPUTS: Final = 6  # predictors of a bit
KINDS: Final = 4  # kinds of bits
BLOCK, ELEMENT, SIGN, SIZE = 0, 1, 2, 3
SLOTS: Final = 1 << 14  # contexts of a predictor
ROWS: Final = 128  # sets of weights of a kind

LIMIT: Final = 1023  # counts of a predictor stop here
LARGEST: Final = 3071  # largest logarithm of odds
WEIGHTS: Final = (12000, 13000, 17000, 15000)  # first weights by kind, in steps of 2^-16
RATES: Final = (12, 20, 30, 30)  # rates at which weights learn, by kind

MATRIX_BLOCK: Final = 8  # elements of a block where a tensor has no kernel
MAX_KERNEL: Final = 64  # positions of a kernel that makes one block
SLACK: Final = 16  # words of zeros that are left out at the end, at most
TENSORS: Final = 32  # groups of tensors that have statistics of their own


def stretch_exact() -> NDArray[np.float64]:
    """Return log(p / (1 - p)) in units for probabilities (i + 1/2) / 4096, float64 (4096,)."""
    p = (np.arange(4096) + 0.5) / 4096
    return UNIT * np.log(p / (1 - p))


def squash_exact() -> NDArray[np.float64]:
    """Return 2^16 / (1 + exp(-x)) for x from -3072 to 3071 units, float64 (6144,)."""
    return 65536 / (1 + np.exp(-np.arange(-3072, 3072) / UNIT))


STRETCH: NDArray[np.int16] = np.rint(stretch_exact()).astype(np.int16)
SQUASH: NDArray[np.uint16] = np.clip(np.rint(squash_exact()), 1, 65535).astype(np.uint16)
# 2^16 / (n + 1.6), which a probability moves by at its n-th bit
MOVES: NDArray[np.uint16] = (655360 // (10 * np.arange(LIMIT + 1) + 16)).astype(np.uint16)
# floor(4 log2(x)): the comparison of fourth powers with powers of two is exact
LOGS: NDArray[np.uint8] = np.array([0, *((x**4).bit_length() - 1 for x in range(1, 1 << 14))], np.uint8)


class Shape(NamedTuple):
    """How the elements of a tensor are coded: rows of blocks, a row for each output.

    A block has the positions of one kernel, or eight elements that are next to each other.

    Attributes:
        start: place of the tensor in the flat vector.
        rows: number of rows.
        length: number of elements of a row.
        blocks: number of blocks of a row.
        elements: number of elements of a block; the last block of a row may have fewer.
        block_step: distance from a block to the next one.
        element_step: distance from an element of a block to the next one.
        above: distance to the element above, in elements of a block: the width of the kernel.
        group: number of the statistics that the tensor uses.
        share: 2^17 over the number of elements of a block.
    """

    start: int
    rows: int
    length: int
    blocks: int
    elements: int
    block_step: int
    element_step: int
    above: int
    group: int
    share: int


def coded_shapes(layout: Layout) -> NDArray[np.int64]:
    """Return the `Shape` of each tensor that has elements, int64 (tensors, 10)."""
    shapes = []
    count = len(layout.shapes)
    for tensor, (shape, size, start) in enumerate(zip(layout.shapes, layout.sizes, layout.offsets, strict=True)):
        group = tensor if count <= TENSORS else tensor * TENSORS // count
        if size == 0:
            continue
        rows = shape[0] if len(shape) > 1 else 1
        length = size // rows
        kernel = shape[2] * shape[3] if len(shape) == 4 else 1
        if 1 < kernel <= MAX_KERNEL:
            inputs = shape[1]
            shapes.append(Shape(start, rows, length, inputs, kernel, 1, inputs, shape[3], group, (1 << 17) // kernel))
        else:
            blocks = -(-length // MATRIX_BLOCK)
            shapes.append(
                Shape(start, rows, length, blocks, MATRIX_BLOCK, MATRIX_BLOCK, 1, 2, group, (1 << 17) // MATRIX_BLOCK)
            )
    return np.array(shapes, np.int64).reshape(-1, len(Shape._fields))

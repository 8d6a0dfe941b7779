"""Checksums of arrays: what changes them, and that copies have those of their source."""

from __future__ import annotations

import numpy as np
import pytest

from fedmrn_app.kernels.checksum import checksum, copy_with_checksum

_MASK = (1 << 64) - 1


def plain_checksum(values: np.ndarray) -> tuple[int, int]:
    """Four polynomials of pairs of values; the pairs after the last four belong to the first."""
    whole = values.size // 2
    bits = [int(word) for word in values.view(np.uint32)]
    words = [bits[2 * i] | bits[2 * i + 1] << 32 for i in range(whole)]
    sums, factor = [0, 0, 0, 0], 0x9E3779B97F4A7C15
    for i, word in enumerate(words):
        lane = i % 4 if i < whole // 4 * 4 else 0
        sums[lane] = (sums[lane] * factor + (word ^ word >> 29)) & _MASK
    lanes = (0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xB564EF22EC7AECE5, 0xF7C2EBC08F67F2B5)
    total = sum(part * lane for part, lane in zip(sums, lanes, strict=True)) & _MASK
    return total, bits[-1] if values.size % 2 else 0


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 1001])
@pytest.mark.parametrize("offset", [0, 1])
def test_copies_have_the_checksum_of_the_plain_form(size: int, offset: int) -> None:
    """Also in memory that does not begin at a whole word."""
    values = np.random.default_rng(size).normal(0, 1, size + offset).astype(np.float32)[offset:]
    target = np.zeros(size + 1, np.float32)[1 - offset : size + 1 - offset]
    assert copy_with_checksum(values, target) == checksum(values) == checksum(target) == plain_checksum(values)
    np.testing.assert_array_equal(target, values)


def test_every_change_changes_it() -> None:
    values = np.random.default_rng(3).normal(0, 1, 500).astype(np.float32)
    seen = {checksum(values)}
    changes = [np.abs(values), -values, values[::-1].copy(), np.sort(values), np.roll(values, 1), values * 1.0000001]
    changes += [np.where(np.arange(500) == i, -values, values) for i in range(500)]
    changes += [np.where(np.isin(np.arange(500), (i, i + 2)), -values, values) for i in range(498)]
    for one in changes:
        seen.add(checksum(one.astype(np.float32)))
    assert len(seen) == 1 + len(changes)

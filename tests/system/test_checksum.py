"""The checksum of large data finds every kind of damage that disks and cut transfers do."""

from __future__ import annotations

import numpy as np
import pytest

from fedmrn_app.system.checksum import block_checksums

BLOCK = 8 * 4096


@pytest.mark.parametrize("size", [0, 1, 7, 8, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_one_number_for_each_block_by_the_definition(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    padded = data.tobytes() + bytes(-size % BLOCK)
    factors = [int(word) | 1 for word in np.random.Philox(key=0x666564_6D726E).random_raw(4096)]
    expected = b""
    for start in range(0, len(padded), BLOCK):
        words = np.frombuffer(padded[start : start + BLOCK], "<u8").tolist()
        total = sum(word * factor for word, factor in zip(words, factors, strict=True)) % 2**64
        expected += total.to_bytes(8, "little")
    assert block_checksums(data) == expected


def test_damage_changes_it() -> None:
    data = np.random.default_rng(0).integers(0, 256, 2 * BLOCK + 100, np.uint8)
    found = block_checksums(data)
    for place in (0, 7, 8, BLOCK - 1, BLOCK, data.size - 1):
        for bit in range(8):
            damaged = data.copy()
            damaged[place] ^= 1 << bit
            assert block_checksums(damaged) != found
    swapped = np.concatenate([data[8:16], data[:8], data[16:]])
    assert block_checksums(swapped) != found
    assert block_checksums(data[1:]) != found  # from an address that is not aligned
    assert block_checksums(data[1:]) == block_checksums(data[1:].copy())

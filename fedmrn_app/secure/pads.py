"""Pads: uniform integers from a 256-bit key, added to or subtracted from vectors at memory speed.

The stream is AES-256 in counter mode (NIST SP 800-38A) from a key that is used for this pad alone. Each word of a field
takes as many bytes of the stream as it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmrn_app.secure.fields import Fields, Words

_CHUNK = 1 << 18  # bytes of the stream that are made at a time, so that they stay in cache
_ZEROS = bytes(_CHUNK)


def add_pad(key: bytes, fields: Fields, total: Sequence[Words], *, subtract: bool = False) -> None:
    """Add the pad of a 32-byte key to `total`, one vector per field, in place; or subtract it."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    buffer = bytearray(_CHUNK + 16)
    apply = np.subtract if subtract else np.add
    for field, words in zip(fields, total, strict=True):
        step = _CHUNK // field.dtype.itemsize
        for start in range(0, field.count, step):
            part = words[start : start + step]
            stream.update_into(memoryview(_ZEROS)[: part.nbytes], buffer)
            apply(part, np.frombuffer(buffer, field.dtype, part.size), out=part)

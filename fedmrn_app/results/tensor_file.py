"""Tensors written as a safetensors file, one after the other, from where they are in memory.

    8 bytes, the length of the header | header: JSON with metadata and the dtype, shape and place of tensors | tensors

The library's `save` takes two copies of all tensors. Its `save_file` refuses tensors that share a buffer, as those of a
module do, reports a full disk without the system's error, and makes files that only their owner can read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

_ALIGNMENT = 8
_PIECE = 1 << 26  # bytes that are written at a time


def write_tensors(
    file: IO[bytes],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    watch: Callable[[int], object] = lambda done: None,
) -> None:
    """Write a safetensors file.

    Args:
        file: an empty file.
        tensors: contiguous tensors on the CPU, by name.
        metadata: further entries of the header.
        watch: called before each piece of a tensor with the number of bytes of tensors that have been written.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in ordered:
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _name_of(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    done = 0
    for _, tensor in ordered:
        octets = bytes_of(tensor)
        for start in range(0, octets.size, _PIECE):
            watch(done + start)
            file.write(octets[start : start + _PIECE].data)
        done += octets.size


def bytes_of(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a view of the bytes of a contiguous tensor on the CPU, uint8 (n,)."""
    if not tensor.numel():
        return np.zeros(0, np.uint8)
    found: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found


@cache
def _name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the header, as the library writes it."""
    data = save({"x": torch.zeros(1, dtype=dtype)})
    return str(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["x"]["dtype"])

"""Loops that Numba compiles once and keeps on disk."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numba
from numba import types

FLOATS, KNOWN_FLOATS = types.Array(types.float32, 1, "C"), types.Array(types.float32, 1, "C", readonly=True)


def compile_loop(signature: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for one signature; what is compiled is kept on disk where there is a place for it.

    What it calls must stand in its module: on disk it is found by its name and by what it closes over, and a compiled
    function among that is another one in each process. Without fastmath nothing is reordered or fused, so the results
    are those of the plain operations.
    """
    # of what processes have kept on disk the symbols are told apart by this name alone, and a thread's entry calls one
    closed = repr([cell.cell_contents for cell in function.__closure__ or ()])
    function.__qualname__ += f"_{zlib.crc32(closed.encode()):08x}"
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        compiled: Callable[..., Any] = numba.njit([signature], cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written
        compiled = numba.njit([signature], **options)(function)
    return compiled

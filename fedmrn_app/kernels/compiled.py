"""Loops that Numba compiles at their first call and keeps in its disk cache."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numba
from numba import types

FLOATS, READ_ONLY_FLOATS = types.Array(types.float32, 1, "C"), types.Array(types.float32, 1, "C", readonly=True)
FLOAT_ROWS = types.Array(types.float32, 2, "C")
READ_ONLY_FLOAT_ROWS = types.Array(types.float32, 2, "C", readonly=True)

Function = Callable[..., Any]


def compile_loop(signature: Any, function: Function, **options: Any) -> Function:
    """Compile a function for one signature, and keep the result on disk if a cache folder is writable.

    Without fastmath Numba neither reorders nor fuses operations, so the results are those of the plain operations.
    `options` are further ones of Numba.
    Other compiled functions that this one calls must be globals of its module, because the cache identifies a closure
    by the values of its cells, and a compiled function is a different object in each process.
    """
    # Numba caches closures of one name in the same files, which processes that write at the same time can mix up
    cells = repr([cell.cell_contents for cell in function.__closure__ or ()])
    function.__qualname__ += f"_{zlib.crc32(cells.encode()):08x}"
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        compiled: Function = numba.njit([signature], cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's is writable
        compiled = numba.njit([signature], **options)(function)
    return compiled


def compiled_at_first_call(signature: Any, **options: Any) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function, as `compile_loop` does, when it is called for the first time."""

    def decorate(function: Function) -> Function:
        compiled = cache(lambda: compile_loop(signature, function, **options))

        @wraps(function)
        def call(*args: Any) -> Any:
            return compiled()(*args)

        return call

    return decorate

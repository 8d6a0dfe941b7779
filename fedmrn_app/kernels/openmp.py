"""The OpenMP threads that PyTorch computes with: further threads beside them would wait for theirs to stop spinning."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class OpenMP:
    """GNU's OpenMP runtime."""

    library: ctypes.CDLL

    @property
    def thread_functions(self) -> tuple[Any, Any]:
        """The number of the calling thread in its team, and how many threads the team has."""
        functions = self.library.omp_get_thread_num, self.library.omp_get_num_threads
        for function in functions:
            function.argtypes, function.restype = (), ctypes.c_int
        return functions

    def run(self, function: int, data: int, threads: int) -> None:
        """Call the C function at an address, with the address of its data, on each thread of a team."""
        self.library.GOMP_parallel(ctypes.c_void_p(function), ctypes.c_void_p(data), ctypes.c_uint(threads), 0)


@cache
def openmp() -> OpenMP | None:
    """The runtime that PyTorch has loaded, or None where it uses another one."""
    if not sys.platform.startswith("linux") or "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        library = ctypes.CDLL("libgomp.so.1")  # found by its name, since PyTorch has it loaded
        library.GOMP_parallel.restype = None
    except (OSError, AttributeError):
        return None
    return OpenMP(library)
